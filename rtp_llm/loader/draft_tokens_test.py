# SPDX-License-Identifier: Apache-2.0
"""Vocabularies of a model and its draft model, in folders and in GGUF files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.loader.draft_model import check_tokens
from rtp_llm.models.config import UnsupportedModelError
from rtp_llm.testing.gguf.writer import Typed, write

_WORDS = ["<s>", "<0x0A>", "▁a", "b", "c", "<pad>"]
_KINDS = [3, 6, 1, 1, 1, 5]


def gguf(folder: Path, words: list[str] | None = None, kinds: list[int] | None = None) -> Path:
    """A file with these tokens of these types, or with none."""
    values: dict[str, Any] = {"general.architecture": "llama"}
    if words is not None:
        values["tokenizer.ggml.tokens"] = words
        values["tokenizer.ggml.token_type"] = Typed("i32", kinds or _KINDS)
    return write(folder.with_suffix(".gguf"), values, {})


def folder_of(folder: Path, vocabulary: Any, added: Any = ()) -> Path:
    folder.mkdir()
    tokens = [{"id": number, "content": text} for text, number in added]
    content = {"model": {"vocab": vocabulary}, "added_tokens": tokens}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def test_files_with_the_same_words(tmp_path: Path) -> None:
    """Control and unused tokens may differ, as may files without a tokenizer."""
    one = gguf(tmp_path / "one", _WORDS)
    other = gguf(tmp_path / "other", ["<bos>", *_WORDS[1:5], "<new>"])
    for target, draft in ((one, one), (one, other), (other, gguf(tmp_path / "none"))):
        check_tokens(target, draft)


def test_a_file_and_a_folder(tmp_path: Path) -> None:
    """Added tokens of the folder are tokens of the file."""
    file, numbered = gguf(tmp_path / "file", _WORDS), {text: n for n, text in enumerate(_WORDS)}
    normal = {text: numbered[text] for text in _WORDS[1:5]}
    whole = folder_of(tmp_path / "folder", normal, [("<s>", 0), ("<extra>", 6)])
    scored = folder_of(tmp_path / "scored", [[text, -0.5] for text in _WORDS])
    for folder in (whole, scored):
        check_tokens(file, folder)
        check_tokens(folder, file)


@pytest.mark.parametrize("words", [["b", "▁a"], ["▁a", "x"], ["▁a", "▁a"]])
def test_other_words_are_refused(tmp_path: Path, words: list[str]) -> None:
    file = gguf(tmp_path / "file", _WORDS)
    others = gguf(tmp_path / "others", [*_WORDS[:2], *words, *_WORDS[4:]])
    folder = folder_of(tmp_path / "folder", {words[0]: 2, words[1]: 3, "c": 4, "<0x0A>": 1})
    for target, draft in ((file, others), (others, file), (file, folder), (folder, file)):
        where = draft if draft.suffix else f"tokenizer.json in {draft}"
        with pytest.raises(UnsupportedModelError, match=rf"same numbers.*\({where}\)"):
            check_tokens(target, draft)
