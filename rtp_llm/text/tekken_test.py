# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of tekken.json: ids are those of transformers' converter."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.text.model_files import ModelFilesError, check_folder
from rtp_llm.text.tokenizer import Tokenizer

CONVERTER = pytest.importorskip("transformers.integrations.mistral.tokenizer").MistralConverter
PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"
NAMES = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "<pad>"]
TEXTS = [
    "the thing is",
    "there, these  and those!\n\n12345",
    "äöü 漢字 <s>[INST] x [/INST]",
    " ",
    "",
]


def tekken(**config: Any) -> dict[str, Any]:
    """256 bytes, and tokens that two earlier ones make, some of which texts have."""
    rng = random.Random(1)
    tokens = [bytes((byte,)) for byte in range(256)]
    words = [b"th", b"he", b"the", b" t", b" th", b"er", b"ere", b"th", b" the", b"se", b"in"]
    tokens += dict.fromkeys(words)
    while len(tokens) < 400:
        made = rng.choice(tokens[97:]) + rng.choice(tokens[97:])
        if made not in tokens:
            tokens.append(made)
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate(tokens)
    ]
    special = [{"rank": i, "token_str": name, "is_control": True} for i, name in enumerate(NAMES)]
    sizes = {"default_vocab_size": 390, "default_num_special_tokens": 10}
    return {
        "config": {"pattern": PATTERN, **sizes, **config},
        "vocab": vocab,
        "special_tokens": special[::-1],
    }


def folder_of(path: Path, content: dict[str, Any]) -> Path:
    (path / "params.json").write_text("{}")
    (path / "tekken.json").write_text(json.dumps(content))
    return path


def test_ids_are_those_of_transformers(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, tekken())
    check_folder(folder, weights=False)
    ours = Tokenizer.from_folder(folder)
    theirs = CONVERTER(str(folder / "tekken.json")).converted()
    rng = random.Random(2)
    texts = [*TEXTS, *("".join(rng.choices("the inseraä1 \n,", k=40)) for _ in range(50))]
    for text in texts:
        ids = ours.encode(text)
        assert ids == [1, *theirs.encode(text, add_special_tokens=False).ids]
        assert ours.decode(ids, skip_special_tokens=True) == theirs.decode(ids)
    assert ours.vocab_size == 390
    assert (ours.eos_token, ours.eos_token_ids) == ("</s>", (2,))
    assert ours.convert_tokens_to_ids("<SPECIAL_9>") == 9


def vocab_with(place: int, **values: Any) -> list[dict[str, Any]]:
    """The vocabulary with other values of one token."""
    vocab: list[dict[str, Any]] = tekken()["vocab"]
    vocab[place] |= values
    return vocab


def encoded(token: bytes) -> str:
    return base64.b64encode(token).decode()


VOCAB = tekken()["vocab"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"vocab": []}, "each byte"),
        ({"vocab": VOCAB[1:]}, "vocab is not in the order of ranks: 1 at 0"),
        ({"vocab": [*VOCAB[:300], *VOCAB[:299:-1]]}, "vocab is not in the order of ranks: 399 at"),
        ({"vocab": vocab_with(300, rank=None)}, "vocab is not in the order of ranks: None at 300"),
        ({"vocab": vocab_with(300, token_bytes=encoded(b"<s>"))}, "vocab both have '<s>'"),
        (
            {"vocab": vocab_with(300, token_bytes=encoded(b"<SPECIAL_9>"))},
            "both have '<SPECIAL_9>'",
        ),
        ({"vocab": vocab_with(300, token_bytes=encoded(b"x" * 1025))}, "300 has 1025 bytes"),
        ({"vocab": vocab_with(300, token_bytes="")}, "300 has 0 bytes"),
        ({"vocab": vocab_with(300, token_bytes=encoded(b"a"))}, "no token twice"),
        ({"config": {}}, "KeyError"),
        ({"special_tokens": [{"rank": 3, "token_str": "x"}]}, "ranks from 0"),
        ({"config": {"pattern": PATTERN, "default_vocab_size": 1 << 30}}, "1073741824 tokens"),
        ({"config": {"pattern": "("}}, r"pattern '\('"),
        ({"config": {"pattern": 3}}, "pattern 3"),
        ({"vocab": [{"token_bytes": "!"}]}, "KeyError: 'rank'"),
        ({"vocab": vocab_with(0, token_bytes="!")}, "base64"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_broken_files_are_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    folder = folder_of(tmp_path, {**tekken(), **change})
    with pytest.raises(ModelFilesError, match=rf"tekken\.json.*{words}"):
        Tokenizer.from_folder(folder)
