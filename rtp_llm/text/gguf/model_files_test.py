# SPDX-License-Identifier: Apache-2.0
"""Special tokens, templates and ends of answers in the metadata of GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rtp_llm.testing.gguf.vocabularies import metadata_of, sentencepiece_values
from rtp_llm.testing.gguf.writer import Typed, packed
from rtp_llm.text.chat_template import ChatTemplateError
from rtp_llm.text.gguf.model_files import stop_ids, tokenizer_values
from rtp_llm.text.tokenizer import Tokenizer

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
DEFAULT = "tokenizer.chat_template"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, None),
        ({DEFAULT: "one"}, "one"),
        (
            {DEFAULT: "one", f"{DEFAULT}.tool_use": "two", f"{DEFAULT}s": ["tool_use", "gone"]},
            [{"name": "default", "template": "one"}, {"name": "tool_use", "template": "two"}],
        ),
        (
            {f"{DEFAULT}.rag": "two", f"{DEFAULT}s": ["rag"]},
            [{"name": "rag", "template": "two"}],
        ),
    ],
)
def test_chat_templates(tmp_path: Path, more: dict[str, Any], expected: Any) -> None:
    values = tokenizer_values(metadata_of(tmp_path, {**sentencepiece_values(), **more}))
    assert values.get("chat_template") == expected
    assert {key: values[key] for key in SPECIAL} == SPECIAL


def vocabulary(*tokens: str, **ids: int) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [*tokens, "<|end|>"],
        "tokenizer.ggml.token_type": Typed("i32", [3] * len(tokens) + [1]),
        **{f"tokenizer.ggml.{name}_token_id": number for name, number in ids.items()},
    }


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (vocabulary("a", "b", "c", eos=1), [1]),
        (vocabulary("a", "b", "c", eos=2, eot=1, eom=0), [2, 1, 0]),
        (vocabulary("a", "b", "c", eos=2, eot=2), [2]),
        (vocabulary("<|endoftext|>", "x", "<|im_end|>", eos=2), [2, 0]),
        (vocabulary("<eos>", "<end_of_turn>", eos=0), [0, 1]),
        # Harmony: <|end|> ends a message of several, unless the file says otherwise.
        (vocabulary("<|return|>", "<|end|>", "<|call|>", eos=0), [0, 2]),
        (vocabulary("x", "<|end|>"), [1]),
        # A word of the text, not a control token.
        (vocabulary("x"), []),
    ],
)
def test_ends_of_answers(tmp_path: Path, values: dict[str, Any], expected: list[int]) -> None:
    assert stop_ids(metadata_of(tmp_path, values)) == expected


def test_the_tokenizer_of_a_file(tmp_path: Path) -> None:
    template = "{{ bos_token }}{% for each in messages %}[{{ each.content }}]{% endfor %}"
    other = tmp_path / "other.jinja"
    other.write_text("{{ messages[0].content }}!")
    values = {"general.architecture": "llama", **sentencepiece_values(eot_token_id=3)}
    file = tmp_path / "model.gguf"
    file.write_bytes(packed({**values, DEFAULT: template}, {}))
    messages = [{"role": "user", "content": "the house"}]
    found = Tokenizer.from_folder(file)
    assert found.apply_chat_template(messages) == "<s>[the house]"
    assert found.chat_template_source == "model.gguf"
    assert found.eos_token_ids == (2, 3)
    assert (found.eos_token, found.special_tokens["bos_token"]) == ("</s>", "<s>")
    ids = found.encode("the house 😀")
    assert ids[0] == 1
    assert found.decode(ids) == "the house 😀"
    found = Tokenizer.from_folder(file, str(other))
    assert found.apply_chat_template(messages) == "the house!"
    assert found.chat_template_source == str(other)
    file.write_bytes(packed(values, {}))
    found = Tokenizer.from_folder(file)
    assert found.encode("the house 😀") == ids
    with pytest.raises(ChatTemplateError, match=r"no chat template.*--chat-template"):
        found.apply_chat_template(messages)
