# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from rtp_llm.testing.model_folders import (
    CORPUS,
    STYLES,
    byte_level,
    sentencepiece,
    with_bos,
    write_folder,
)
from rtp_llm.text.chat_template import ChatTemplateError
from rtp_llm.text.generation_defaults import GenerationDefaults
from rtp_llm.text.model_files import ModelFilesError, check_folder
from rtp_llm.text.tokenizer import Tokenizer

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "你好 12 + 30?"}]
# tokenizer.json's own post-processor holds, whatever these say.
CONFIGS: list[dict[str, Any]] = [{}, {"add_bos_token": False, "add_eos_token": True}]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("style", ["byte_level", "sentencepiece", "gemma"])
def test_equals_transformers(tmp_path: Path, style: str, bos: bool, config: dict[str, Any]) -> None:
    backend = with_bos(STYLES[style]()) if bos else STYLES[style]()
    folder = write_folder(tmp_path, backend, tokenizer_config=config)
    own = Tokenizer.from_folder(folder)
    reference = AutoTokenizer.from_pretrained(folder)
    for text in CORPUS:
        for special in (True, False):
            expected = reference.encode(text, add_special_tokens=special)
            assert own.encode(text, add_special_tokens=special) == expected
            for skip in (True, False):
                expected_text = reference.decode(expected, skip_special_tokens=skip)
                assert own.decode(expected, skip_special_tokens=skip) == expected_text
    rendered = own.apply_chat_template(CHAT)
    template = {"add_generation_prompt": True, "tokenize": False}
    assert rendered == reference.apply_chat_template(CHAT, **template)
    template = {"add_generation_prompt": True, "return_dict": False}
    assert own.encode(rendered, False) == reference.apply_chat_template(CHAT, **template)
    assert own.vocab_size == len(reference)


def test_eos_ids_come_from_all_sources(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path,
        byte_level(),
        config={"eos_token_id": 7},
        generation_config={"eos_token_id": [9, 7], "temperature": 0.6, "top_k": 20},
    )
    tokenizer = Tokenizer.from_folder(folder)
    im_end = tokenizer.encode("<|im_end|>", add_special_tokens=False)
    assert tokenizer.eos_token_ids == (9, 7, *im_end)
    assert tokenizer.defaults == GenerationDefaults(temperature=0.6, top_k=20)


def test_truncation_and_padding_of_the_file_are_ignored(tmp_path: Path) -> None:
    backend = byte_level()
    backend.enable_truncation(2)
    backend.enable_padding(length=50)
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, backend))
    ids = tokenizer.encode("a small house")
    assert tokenizer.decode(ids) == "a small house"
    assert 2 < len(ids) < 50


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    expected = Tokenizer.from_folder(write_folder(tmp_path, byte_level())).encode("Hello")
    file = tmp_path / "tokenizer.json"
    file.write_bytes(codecs.BOM_UTF8 + file.read_bytes())
    assert Tokenizer.from_folder(tmp_path).encode("Hello") == expected


def test_token_text_and_bytes(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, sentencepiece()))
    ids = tokenizer.encode("a small 😀", add_special_tokens=False)
    assert b"".join(tokenizer.token_bytes(token) for token in ids) == " a small 😀".encode()
    assert tokenizer.token_text(ids[-1]) == "\ufffd"
    assert tokenizer.tokens([ids[-1], 10**6]) == ["<0x80>", ""]
    assert tokenizer.token_bytes(10**6) == b"" == tokenizer.token_bytes(-1)


TEMPLATE = "own template"


@pytest.mark.parametrize("place", ["file", "config", "named", "processor", "override"])
def test_places_of_the_chat_template(tmp_path: Path, place: str) -> None:
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": TEMPLATE}]
    configs = {"config": {"chat_template": TEMPLATE}, "named": {"chat_template": named}}
    folder = write_folder(
        tmp_path, byte_level(), template=None, tokenizer_config=configs.get(place, {})
    )
    override = None
    if place == "file":
        (folder / "chat_template.jinja").write_text(TEMPLATE)
    if place == "processor":
        (folder / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    if place == "override":
        override = str(tmp_path / "other.jinja")
        Path(override).write_text(TEMPLATE)
        (folder / "chat_template.jinja").write_text("not this one")
    tokenizer = Tokenizer.from_folder(folder, chat_template=override)
    assert tokenizer.apply_chat_template(CHAT) == TEMPLATE


def test_without_a_chat_template(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, byte_level(), template=None))
    assert not tokenizer.has_chat_template
    with pytest.raises(ChatTemplateError, match="no chat template"):
        tokenizer.apply_chat_template(CHAT)


def test_special_tokens_map_is_a_fallback(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path,
        byte_level(),
        template="{{ bos_token }}|{{ eos_token }}",
        tokenizer_config={"bos_token": None, "eos_token": {"content": "</s>"}},
    )
    (folder / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": "<s>"}}))
    assert Tokenizer.from_folder(folder).apply_chat_template([]) == "<s>|</s>"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("missing", "no model folder at"),
        ("file", "is a file; give the folder"),
        ("empty", r"lacks config.json, tokenizer.json, \*.safetensors \(it holds: nothing\)"),
        ("no tokenizer", r"lacks tokenizer.json \(it holds: "),
        ("no weights", r"lacks \*.safetensors .*Convert the .bin weights"),
        ("bad tokenizer", "cannot read .*tokenizer.json"),
        ("bad json", "cannot read .*generation_config.json"),
        ("list json", "config.json must hold a JSON object, not list"),
        ("bad template", "does not compile"),
        ("no override", "--chat-template: cannot read"),
        ("odd template", r"tokenizer_config\.json: chat_template must be a text or a list of obj"),
    ],
)
def test_errors_name_what_is_wrong(tmp_path: Path, change: str, message: str) -> None:
    folder = tmp_path / "model"
    override = None
    if change == "file":
        folder.touch()
    elif change == "empty":
        folder.mkdir()
    elif change != "missing":
        write_folder(folder, byte_level(), template="{% for %}" if "template" in change else None)
    if change == "no tokenizer":
        (folder / "tokenizer.json").rename(folder / "other.json")
    if change == "no weights":
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    if change == "bad tokenizer":
        (folder / "tokenizer.json").write_text("{}")
    if change == "bad json":
        (folder / "generation_config.json").write_text("{")
    if change == "list json":
        (folder / "config.json").write_text("[]")
    if change == "odd template":
        config = {"chat_template": [{"template": "x"}]}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if change == "no override":
        override = str(tmp_path / "none.jinja")
    with pytest.raises(ModelFilesError, match=message):
        check_folder(folder)
        Tokenizer.from_folder(folder, chat_template=override)


def test_generation_defaults() -> None:
    read = GenerationDefaults.read
    assert read({"do_sample": False, "temperature": 0.7}).temperature == 0.0
    assert read({"do_sample": True, "temperature": 1}).temperature == 1.0
    assert read({"temperature": None, "top_k": None, "top_p": None}) == GenerationDefaults()
    defaults = read({"top_p": 0.8, "max_new_tokens": 5})
    assert defaults.pick("top_p", None, 1.0) == 0.8
    assert defaults.pick("top_p", 0.3, 1.0) == 0.3
    assert defaults.pick("temperature", None, 1.0) == 1.0
    assert defaults.max_tokens == 5
    defaults.params()
    with pytest.raises(ValueError, match=r"top_p=1\.7 must be between"):
        read({"top_p": 1.7}).params()
