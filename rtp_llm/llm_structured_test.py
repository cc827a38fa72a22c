# SPDX-License-Identifier: Apache-2.0
"""Offline generation with grammars and tools, over a tiny model with random weights."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rtp_llm import LLM, SamplingParams, StructuredOutputsParams
from rtp_llm.testing.model_folders import byte_level
from rtp_llm.testing.models.transformers_models import save_model
from rtp_llm.text.grammar import GrammarError

SMALL: dict[str, Any] = {"kv_cache_mem_mb": 8, "num_threads": 1}
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}"
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if think %}<think>{% endif %}{# </think> #}"
)
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path: Path = tmp_path_factory.mktemp("model")
    tokenizer = byte_level()
    save_model(path, "qwen3", vocab_size=tokenizer.get_vocab_size(), eos_token_id=4)
    tokenizer.save(str(path / "tokenizer.json"))
    names = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(names))
    with LLM(path, **SMALL) as made:
        yield made


def obeying(**wanted: Any) -> SamplingParams:
    outputs = StructuredOutputsParams(**wanted)
    return SamplingParams(max_tokens=60, seed=1, structured_outputs=outputs)


def test_outputs_obey_what_is_wanted(llm: LLM) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    schema["additionalProperties"] = False
    wanted = [obeying(regex="[0-9]{3}"), obeying(choice=["blue", "red"]), obeying(json=schema)]
    free = SamplingParams(max_tokens=5, seed=1)
    texts = [out.outputs[0].text for out in llm.generate(["Once"] * 4, [*wanted, free])]
    assert re.fullmatch("[0-9]{3}", texts[0])
    assert texts[1] in ("blue", "red")
    assert json.loads(texts[2])["a"] in (1, 2)


def test_what_cannot_be_obeyed(llm: LLM) -> None:
    with pytest.raises(GrammarError, match=r"structured_outputs\.json: .*uniqueItems"):
        llm.generate("Once", obeying(json={"type": "array", "uniqueItems": True}))


def test_tools_reach_the_template(llm: LLM) -> None:
    tool = {"type": "function", "function": {"name": "add"}}
    (output,) = llm.chat(HELLO, SamplingParams(max_tokens=1), tools=[tool])
    assert output.prompt == "addHello"


def test_a_chat_obeys_from_the_end_of_its_thinking_on(llm: LLM) -> None:
    params = obeying(choice=["blue"])
    (output,) = llm.chat(HELLO, params, think=True)
    assert output.outputs[0].text != "blue"  # it thinks until its tokens are used up
    assert output.outputs[0].finish_reason == "length"
    (output,) = llm.generate("Hello", params)
    assert output.outputs[0].text == "blue"
