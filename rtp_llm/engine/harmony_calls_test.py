# SPDX-License-Identifier: Apache-2.0
"""Models that write on channels call as they must: random weights, thinking, drafts, no slack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.model_folders import byte_level, write_folder
from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.text.conversation import Tool, ToolChoice
from rtp_llm.text.parsers.calls.harmony import Harmony
from rtp_llm.text.parsers.deltas import ReasoningDelta, ToolArguments, ToolCallBegin
from rtp_llm.text.parsers.parser import joined
from rtp_llm.text.parsers.registry import make_parser, tool_grammar
from rtp_llm.text.parsers.spec import ParserSpec
from rtp_llm.text.thinking import thinking_of
from rtp_llm.text.tokenizer import Tokenizer

ADD = Tool(
    "add",
    parameters={
        "type": "object",
        "properties": {
            "a": {"type": "integer", "minimum": 0, "maximum": 99},
            "unit": {"enum": ["cm", "mm"]},
        },
        "required": ["a", "unit"],
        "additionalProperties": False,
    },
    strict=True,
)
NOW = Tool("now", parameters={"type": "object", "properties": {}, "additionalProperties": False})
MARKERS = Harmony().markers
BUDGET = 9


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of such a vocabulary, whose answers <|return|> and <|call|> end."""
    path = tmp_path_factory.mktemp("model")
    tokenizer = byte_level()
    tokenizer.add_special_tokens(list(MARKERS))
    ends = [tokenizer.token_to_id(text) for text in ("<|return|>", "<|call|>")]
    save_model(path, "llama", vocab_size=440, eos_token_id=ends)
    config = json.loads((path / "config.json").read_text())
    weights = (path / "model.safetensors").read_bytes()
    write_folder(path, tokenizer, config=config, generation_config={"eos_token_id": ends})
    (path / "model.safetensors").write_bytes(weights)
    return path


@pytest.mark.parametrize("speculative", [None, "grammar", "ngram"])
@pytest.mark.parametrize("names", [None, ("now",)])
def test_required_calls_of_random_weights(
    folder: Path, names: tuple[str, ...] | None, speculative: str | None
) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    choice = ToolChoice("required", names=names)
    grammar = tool_grammar("openai", [ADD, NOW], choice, tokenizer.special_token_ids)
    assert grammar is not None
    thinking = thinking_of("harmony", False, tokenizer, BUDGET, before_calls=True)
    channel = tokenizer.special_token_ids["<|channel|>"]
    settings: dict[str, Any] = {} if speculative is None else {"speculative": speculative}
    engine = TinyEngine(folder, max_running_requests=8, **settings)
    requests = [
        engine.add(
            random_prompt(5 + number, number, 300),
            grammar=grammar.text,
            thinking=thinking if number % 2 else None,
            temperature=1.0,
            seed=number,
            max_tokens=200,
            logit_bias={channel: 100.0} if number % 3 else {},
        )
        for number in range(24)
    ]
    engine.run()
    thought = 0
    for request in requests:
        outcome = engine.outcomes[request, 0]
        assert outcome.error is None and outcome.finish == "stop"
        text = tokenizer.decode(outcome.tokens, skip_special_tokens=False)
        assert text.endswith("<|call|>")
        thought += check_call(text, names or ("add", "now"))
    assert 0 < thought < len(requests)
    engine.assert_all_free()


def check_call(text: str, names: tuple[str, ...]) -> bool:
    """Check that the answer is a valid call of one of the tools, and return whether an analysis
    precedes it."""
    parser = make_parser(ParserSpec("openai", "openai_gptoss", tools=(ADD, NOW)))
    *before, begin, arguments = joined([*parser.feed(text), *parser.finish()])
    assert isinstance(begin, ToolCallBegin) and isinstance(arguments, ToolArguments), text
    assert all(isinstance(delta, ReasoningDelta) for delta in before), text
    assert begin.name in names
    tool = {"add": ADD, "now": NOW}[begin.name]
    assert Draft202012Validator(tool.parameters).is_valid(json.loads(arguments.text)), text
    return bool(before)
