# SPDX-License-Identifier: Apache-2.0
"""tiktoken.model: ids are those of joining neighbours by rank, one pair after the other."""

from __future__ import annotations

import base64
import json
import random
from itertools import pairwise
from pathlib import Path

import pytest

from rtp_llm.model_folder import ModelFilesError
from rtp_llm.text.model_files import check_folder
from rtp_llm.text.tokenizer import Tokenizer

WORDS = [b"th", b"he", b"the", b" t", b" the", b"er", b"se", "\u6f22".encode(), b"12", b"an"]


def tokens() -> list[bytes]:
    """256 bytes, and tokens that two earlier ones make."""
    chance = random.Random(1)
    found = [bytes((byte,)) for byte in range(256)]
    found += ["\u6f22".encode()[:2], *WORDS]
    while len(found) < 400:
        made = chance.choice(found[97:]) + chance.choice(found[97:])
        if made not in found:
            found.append(made)
    return found


def save(folder: Path, listed: list[bytes], name: str = "TikTokenTokenizer") -> None:
    lines = (base64.b64encode(each) + b" %d" % rank for rank, each in enumerate(listed))
    (folder / "tiktoken.model").write_bytes(b"\n".join(lines))
    (folder / "config.json").write_text("{}")
    added = {str(len(listed)): {"content": "[BOS]", "special": True}}
    config = {"tokenizer_class": name, "bos_token": "[BOS]", "added_tokens_decoder": added}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def joined(piece: bytes, ranks: dict[bytes, int]) -> list[int]:
    """The ids of a piece: the two neighbours that make the lowest rank join first."""
    parts = [bytes((byte,)) for byte in piece]
    while len(parts) > 1:
        pairs = [ranks.get(a + b, 1 << 30) for a, b in pairwise(parts)]
        if min(pairs) == 1 << 30:
            break
        at = pairs.index(min(pairs))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [ranks[part] for part in parts]


def test_ids_are_those_of_ranks(tmp_path: Path) -> None:
    listed = tokens()
    save(tmp_path, listed)
    check_folder(tmp_path, weights=False)
    tokenizer = Tokenizer.from_folder(tmp_path)
    ranks = {token: rank for rank, token in enumerate(listed)}
    chance = random.Random(2)
    for _ in range(300):
        word = "".join(chance.choices("therasn", k=chance.randrange(1, 12)))
        ids = ranks.get(word.encode())
        expected = joined(word.encode(), ranks) if ids is None else [ids]
        assert tokenizer.encode(word) == expected, word
        assert tokenizer.decode(expected) == word


def test_texts_are_cut_as_kimi_does(tmp_path: Path) -> None:
    """Chinese letters apart from others, numbers in threes, capitals begin words."""
    save(tmp_path, tokens())
    tokenizer = Tokenizer.from_folder(tmp_path)
    for text, parts in (
        ("the\u6f22the", ["the", "\u6f22", "the"]),
        ("12345", ["123", "45"]),
        ("heTh er", ["he", "Th", " er"]),
        ("[BOS]the", ["[BOS]", "the"]),
    ):
        assert tokenizer.encode(text) == [
            number for part in parts for number in tokenizer.encode(part)
        ]
    assert tokenizer.encode("[BOS]") == [400]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("class", "how 'Other' cuts texts is not known here.*TikTokenConverter"),
        ("rank", "line 257 must have a token and the rank 256"),
        ("twice", "must have each byte, and no token twice"),
        ("letters", "tiktoken.model: "),
    ],
)
def test_other_files_are_refused(tmp_path: Path, change: str, words: str) -> None:
    listed = tokens()
    save(tmp_path, [*listed, b"the"] if change == "twice" else listed)
    file = tmp_path / "tiktoken.model"
    if change == "class":
        save(tmp_path, listed, "Other")
    elif change == "rank":
        file.write_bytes(file.read_bytes().replace(b" 256\n", b" 7\n"))
    elif change == "letters":
        file.write_bytes(b"?? 0\n")
    with pytest.raises(ModelFilesError, match=words):
        Tokenizer.from_folder(tmp_path)
