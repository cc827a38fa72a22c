# SPDX-License-Identifier: Apache-2.0
"""Answers of a random model to schemas of the committed generator, validated by `jsonschema`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from rtp_llm.request.constraints import Grammar
from rtp_llm.testing.engine.grammars import EOS, VOCABULARY, save_spelling_model, text_of
from rtp_llm.testing.engine.tiny_engine import Outcome, TinyEngine
from rtp_llm.testing.models.transformers_models import random_prompt
from rtp_llm.testing.text.random_schemas import SchemaMaker
from rtp_llm.testing.text.verdicts import oracle_of
from rtp_llm.text.grammar import GrammarError, check_grammar, json_schema_grammar
from rtp_llm.text.tokenizer import Tokenizer

MAX_TOKENS = 400
FREE_EVERY = 3
"""Among 64 requests there are 48 with a schema and 16 free ones."""
LEAN = 3.0
"""What the logits of tokens that lead to the end are raised by: a random model ends nothing by
itself, as a closing quote is one token of some hundreds. All others together stay more likely."""
_LEADING = ('"', "]", "}", "b", "\\")  # some patterns want `b` or an escaped quote in the end


class SchemaCase(NamedTuple):
    """A schema, and its grammar as the server would make it."""

    schema: Any
    grammar: Grammar


def schema_cases(folder: Path, number: int) -> list[SchemaCase]:
    """The first `number` schemas of the generator that are not refused."""
    tokenizer = Tokenizer.from_folder(folder)
    found: list[SchemaCase] = []
    for seed in count():
        schema = SchemaMaker(seed).schema()
        try:
            grammar = json_schema_grammar(schema)
            check_grammar(grammar, tokenizer)
        except GrammarError:
            continue
        found.append(SchemaCase(schema, grammar))
        if len(found) == number:
            break
    return found


@dataclass
class Answers:
    """What became of answers: how many ended, which were cut by their length, which are wrong."""

    folder: Path
    ended: int = 0
    cut: list[SchemaCase] = field(default_factory=list)
    tokens: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, case: SchemaCase, outcome: Outcome) -> None:
        """Judge the answer to `case`."""
        self.tokens += len(outcome.tokens)
        if outcome.finish == "length" and len(outcome.tokens) == MAX_TOKENS:
            self.cut.append(case)
        elif (outcome.finish, outcome.stop_token) != ("stop", EOS):
            self.wrong.append(f"{case.schema}: {outcome}")
        else:
            self.ended += 1
            text = text_of(self.folder, outcome.tokens)
            if not _is_valid(case.schema, text):
                self.wrong.append(f"{case.schema}: {text!r}")


class Asker:
    """Adds requests, towards whose end the model leans."""

    def __init__(self, folder: Path, engine: TinyEngine, seed: int = 0, lean: float = LEAN) -> None:
        tokenizer = Tokenizer.from_folder(folder)
        leading = [tokenizer.encode(text, add_special_tokens=False)[0] for text in _LEADING]
        self._bias = dict.fromkeys((EOS, *leading), lean)
        self._engine = engine
        self._seed = seed

    def constrained(self, number: int, case: SchemaCase) -> int:
        """A request for an answer to the case."""
        return self._add(
            number, grammar=case.grammar.text, logit_bias=self._bias, max_tokens=MAX_TOKENS
        )

    def free(self, number: int) -> int:
        """A request without a grammar."""
        return self._add(number, max_tokens=20 + number % 40, logprobs=2)

    def _add(self, number: int, **options: Any) -> int:
        prompt = random_prompt(4 + number % 30, number % 7, VOCABULARY - 40)
        return self._engine.add(prompt, temperature=1.0, seed=self._seed + number, **options)


def save_answering_model(folder: Path) -> Path:
    """A random model with room for a prompt and an answer."""
    return save_spelling_model(folder, max_position_embeddings=MAX_TOKENS + 100)


def answers_alone(
    folder: Path,
    cases: Sequence[SchemaCase],
    *,
    seed: int,
    overlap: bool,
    lean: float = LEAN,
) -> Answers:
    """One request after the other."""
    engine = TinyEngine(folder, enable_overlap=overlap)
    asker, answers = Asker(folder, engine, seed, lean), Answers(folder)
    for number, case in enumerate(cases):
        request = asker.constrained(number, case)
        engine.run()
        answers.add(case, engine.outcomes[request, 0])
    engine.assert_all_free()
    return answers


def answers_in_batches(
    folder: Path, cases: Sequence[SchemaCase], *, seed: int, overlap: bool
) -> tuple[Answers, list[Outcome]]:
    """64 requests at a time, of which every fourth is free; the outcomes of these come too."""
    engine = TinyEngine(folder, max_running_requests=64, enable_overlap=overlap)
    asker, answers = Asker(folder, engine, seed), Answers(folder)
    constrained: dict[int, SchemaCase] = {}
    free: list[int] = []
    for number, case in enumerate(cases):
        constrained[asker.constrained(number, case)] = case
        if (number + 1) % FREE_EVERY == 0:
            free.append(asker.free(number))
    engine.run()
    answers.wrong += [failed.message for failed in engine.failures.values()]
    for request, case in constrained.items():
        answers.add(case, engine.outcomes[request, 0])
    engine.assert_all_free()
    return answers, _outcomes(engine, free)


def free_alone(folder: Path, number: int, *, seed: int) -> list[Outcome]:
    """The outcomes of the free requests that `number` cases come with, without the cases."""
    engine = TinyEngine(folder, max_running_requests=64)
    asker = Asker(folder, engine, seed)
    requests = [asker.free(each) for each in range(FREE_EVERY - 1, number, FREE_EVERY)]
    engine.run()
    return _outcomes(engine, requests)


def _outcomes(engine: TinyEngine, requests: Sequence[int]) -> list[Outcome]:
    """Without how much of a prompt others have had."""
    return [replace(engine.outcomes[request, 0], cached=0) for request in requests]


def _is_valid(schema: Any, text: str) -> bool:
    value = json.loads(text, parse_float=_exactly, parse_constant=_no_json)
    return bool(oracle_of(schema).is_valid(value))


def _exactly(text: str) -> float | Decimal:
    """The double if it is the number as it is written, or if the exponent has many digits."""
    number = float(text)
    try:
        return number if Decimal(repr(number)) == Decimal(text) else Decimal(text)
    except InvalidOperation:
        return number


def _no_json(text: str) -> None:
    raise ValueError(f"{text} is no JSON")
