# SPDX-License-Identifier: Apache-2.0
"""Grammars whose answers end soon, and models that know how to spell them."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema_rs
import pytest
import tokenizers
from llguidance import LLMatcher

from rtp_llm.testing.model_folders import byte_level
from rtp_llm.testing.models.transformers_models import save_model
from rtp_llm.worker.grammar.llguidance_library import LlguidanceLibrary

VOCABULARY = 430  # the tokenizer has fewer
EOS = 2


class Case(NamedTuple):
    """A grammar in llguidance's form, and whether a whole answer is one of its own."""

    grammar: str
    accepts: Callable[[str], bool]


def save_spelling_model(folder: Path, kind: str = "llama", **settings: Any) -> Path:
    """A random model with a byte-level tokenizer; token 2 ends an answer."""
    save_model(folder, kind, **{"vocab_size": VOCABULARY, "eos_token_id": EOS, **settings})
    byte_level().save(str(folder / "tokenizer.json"))
    return folder


def text_of(folder: Path, tokens: list[int]) -> str:
    """A whole answer, without the id that ended it."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokens[-1] == EOS
    text: str = tokenizer.decode(tokens[:-1], skip_special_tokens=False)
    return text


def json_case(schema: Any) -> Case:
    """JSON of a schema, without whitespace."""
    validator = jsonschema_rs.validator_for(schema)
    options: Any = {"whitespace_flexible": False}
    grammar = LLMatcher.grammar_from_json_schema(schema, overrides=options)
    return Case(grammar, lambda text: validator.is_valid(json.loads(text)))


def regex_case(pattern: str) -> Case:
    """Text of a pattern."""
    accepts = re.compile(pattern).fullmatch
    return Case(LLMatcher.grammar_from_regex(pattern), lambda text: bool(accepts(text)))


def random_schema(rng: random.Random, depth: int = 2) -> Any:
    """One whose values are short."""
    simple = [
        {"type": "boolean"},
        {"type": "integer", "minimum": rng.randrange(-50, 50), "maximum": rng.randrange(50, 999)},
        {"enum": rng.sample(["red", "green", "blue", 7, None, "ä"], 3)},
        {"type": "string", "maxLength": rng.randrange(1, 9)},
        {"type": "string", "pattern": "^[a-c]{1,4}$"},
        {"const": {"k": [1, 2]}},
    ]
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(simple)
    if rng.random() < 0.3:
        inner = random_schema(rng, depth - 1)
        return {"type": "array", "items": inner, "minItems": 1, "maxItems": rng.randrange(1, 4)}
    names = rng.sample(["a", "name", "n1", "x y", "ü"], rng.randrange(1, 4))
    properties = {name: random_schema(rng, depth - 1) for name in names}
    required = names[: rng.randrange(len(names) + 1)]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def cases(count: int, seed: int = 0) -> list[Case]:
    """Most of them schemas."""
    rng = random.Random(seed)
    others = [regex_case(r"(yes|no|perhaps)"), regex_case(r"[0-9]{3}-[a-f]{2,5}")]
    schemas = [json_case(random_schema(rng)) for _ in range(count - len(others))]
    return [*others, *schemas]


class SlowLibrary:
    """Compiles when it may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.release = False
        compiled = LlguidanceLibrary.compile

        def compile_later(library: LlguidanceLibrary, text: str) -> Any:
            while not self.release:
                time.sleep(0.001)
            return compiled(library, text)

        monkeypatch.setattr(LlguidanceLibrary, "compile", compile_later)
