# SPDX-License-Identifier: Apache-2.0
"""Tests of tokenizer and template files that are broken or hostile."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.model_folder import ModelFilesError
from rtp_llm.testing.model_folders import byte_level, sentencepiece, write_folder
from rtp_llm.text.model_files import check_folder
from rtp_llm.text.tokenizer import Tokenizer

FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "chat_template.jinja",
    "chat_template.json",
)


def folder_of(path: Path) -> Path:
    return write_folder(path / "model", byte_level(), template=None)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["pipe", "directory", "loop", "not UTF-8", "deep"])
def test_every_file_is_refused_by_name(tmp_path: Path, name: str, kind: str) -> None:
    folder = folder_of(tmp_path)
    file = folder / name
    file.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "directory":
        file.mkdir()
    elif kind == "loop":
        file.symlink_to(name)
    elif kind == "not UTF-8":
        file.write_bytes(b'{"chat_template": "\xff"}')
    else:
        file.write_text('{"version": ' + "[" * 50_000 if name != "chat_template.jinja" else "{{")
    with pytest.raises(ModelFilesError, match=r"chat.template" if "jinja" in name else name):
        check_folder(folder)
        Tokenizer.from_folder(folder)


@pytest.mark.parametrize("key", ["bos_token", "eos_token", "unk_token"])
@pytest.mark.parametrize("value", [5, ["<s>"], {"content": 5}, {"text": "<s>"}, True])
def test_special_tokens_are_texts(tmp_path: Path, key: str, value: Any) -> None:
    folder = folder_of(tmp_path)
    (folder / "tokenizer_config.json").write_text(json.dumps({key: value}))
    with pytest.raises(ModelFilesError, match=rf"tokenizer_config\.json: {key} must be a text"):
        Tokenizer.from_folder(folder)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("value", [True, "</s>", [1, False], -1, 2**31, 1.0, {"id": 1}, [[1]]])
def test_end_ids_are_token_ids(tmp_path: Path, file: str, value: Any) -> None:
    folder = folder_of(tmp_path)
    (folder / file).write_text(json.dumps({"eos_token_id": value}))
    with pytest.raises(ModelFilesError, match=rf"{file}: eos_token_id must be a token id or a "):
        Tokenizer.from_folder(folder)


@pytest.mark.parametrize(
    "template",
    [5, True, [5], [{"name": 1, "template": "x"}], [{"name": [], "template": "x"}], {"default": 5}],
)
@pytest.mark.parametrize("file", ["tokenizer_config.json", "chat_template.json"])
def test_templates_are_texts(tmp_path: Path, file: str, template: Any) -> None:
    folder = folder_of(tmp_path)
    (folder / file).write_text(json.dumps({"chat_template": template}))
    with pytest.raises(ModelFilesError, match=rf"{file}: chat_template must be a text or a list"):
        Tokenizer.from_folder(folder)


def test_the_default_of_several_templates_is_taken(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    listed = [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]
    for templates in (listed, {"rag": "R", "default": "D"}):
        content = json.dumps({"chat_template": templates})
        (folder / "tokenizer_config.json").write_text(content)
        assert Tokenizer.from_folder(folder).apply_chat_template([]) == "D"


def test_wrong_sampling_defaults_are_no_matter_where_they_are_not_used(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (folder / "generation_config.json").write_text('{"top_p": "x"}')
    tokenizer = Tokenizer.from_folder(folder)
    with pytest.raises(ModelFilesError, match=r"generation_config\.json: top_p must be"):
        _ = tokenizer.defaults


def test_merges_that_would_end_the_process_are_refused(tmp_path: Path) -> None:
    """tokenizers aborts where it cuts a prefix of one byte off a piece that has none of it."""
    folder = write_folder(tmp_path / "model", sentencepiece(), template=None)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["continuing_subword_prefix"] = "x"
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ModelFilesError, match=r"tokenizer\.json: model\.merges joins .*prefix \(x"):
        Tokenizer.from_folder(folder)


def test_unsupported_defaults_are_named_in_one_warning(tmp_path: Path, caplog: Any) -> None:
    folder = folder_of(tmp_path)
    (folder / "generation_config.json").write_text('{"top_p": 0.5, "num_beams": 2, "top_h": 0.1}')
    tokenizer = Tokenizer.from_folder(folder)
    assert not caplog.records
    for _ in range(3):
        assert tokenizer.defaults.top_p == 0.5
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().endswith("without effect: num_beams, top_h")


def test_folders_that_cannot_be_listed_are_named(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path / "loop", tmp_path / "none"):
        with pytest.raises(ModelFilesError, match=path.name):
            check_folder(path)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("m.gguf", r"m\.gguf: the magic number needs"),
        (".", r"lacks config\.json.* Give the path of the GGUF file itself\."),
        ("none.gguf", r"no model folder at .*none\.gguf"),
        ("bartowski/Qwen3-8B-GGUF", r'(?s)hf download bartowski/Qwen3-8B-GGUF --include "\*Q4_K_M'),
    ],
)
def test_gguf_is_answered_with_what_to_serve(tmp_path: Path, place: str, words: str) -> None:
    (tmp_path / "m.gguf").touch()
    path = place if "/" in place else tmp_path / place
    with pytest.raises(ModelFilesError, match=words):
        check_folder(path)


def test_a_vocabulary_without_its_merges_is_no_tokenizer(tmp_path: Path) -> None:
    for name in ("config.json", "vocab.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(ModelFilesError, match=r"lacks tokenizer\.json"):
        check_folder(tmp_path, weights=False)
