# SPDX-License-Identifier: Apache-2.0
"""Published tokenizer files, which the package mistral-common has, against its own encoder.

Needs the network: the package and sentencepiece are installed into a temporary folder.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from rtp_llm.text.tokenizer import Tokenizer

PACKAGE = "mistral-common[sentencepiece]"
WORDS = [
    *("the", "of", "and", "to", "that", "was", "Hello,", "World!", "naïve", "café"),
    *("漢字", "日本語", "😀", "Привет", "мир", "\n", "\n\n", "\t"),
    *("12345", "3.14", "foo_bar(x)", "=>", "{}", "```", "..."),
]
LETTERS = "abc dé漢😀\n▁ xyz.,!'1"
# Writes [[ids of each text] of each file] for the files and the texts of its arguments.
ENCODE = """
import json, pathlib, sys
from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
texts = json.loads(pathlib.Path(sys.argv[1]).read_text())
kinds = {True: Tekkenizer.from_file, False: SentencePieceTokenizer}
made = [kinds[name.endswith(".json")](name) for name in sys.argv[2:]]
print(json.dumps([[each.encode(text, bos=True, eos=False) for text in texts] for each in made]))
"""


def random_texts(count: int) -> list[str]:
    chance = random.Random(0)
    made = []
    for number in range(count):
        if number % 3:
            words = chance.choices(WORDS, k=chance.randrange(14))
            made.append(chance.choice((" ", "  ", "")).join(words))
        else:
            made.append("".join(chance.choices(LETTERS, k=chance.randrange(40))))
    return made


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), PACKAGE]
    if subprocess.run(command, check=False).returncode:
        pytest.skip(f"{PACKAGE} cannot be installed")
    return folder


def test_ids_of_10_000_texts_are_those_of_mistral(package: Path, tmp_path: Path) -> None:
    data = package / "mistral_common/data"
    files = [*sorted(data.glob("tekken_*.json")), *sorted(data.glob("tokenizer.model*"))]
    assert len(files) >= 2, "the package has no tokenizers any more"
    texts = random_texts(10_000)
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    done = subprocess.run(
        [sys.executable, "-c", ENCODE, str(tmp_path / "texts.json"), *map(str, files)],
        env={"PYTHONPATH": str(package)},
        capture_output=True,
        check=True,
    )
    for file, expected in zip(files, json.loads(done.stdout), strict=True):
        folder = tmp_path / file.name
        folder.mkdir()
        is_tekken = file.suffix == ".json"
        (folder / ("tekken.json" if is_tekken else "tokenizer.model")).symlink_to(file)
        (folder / ("params.json" if is_tekken else "config.json")).write_text("{}")
        tokenizer = Tokenizer.from_folder(folder)
        differing = [
            text for text, ids in zip(texts, expected, strict=True) if tokenizer.encode(text) != ids
        ]
        assert not differing, (file.name, len(differing), differing[:5])
