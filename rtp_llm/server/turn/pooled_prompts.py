# SPDX-License-Identifier: Apache-2.0
"""Turns the inputs of a request for vectors, scores or labels into prompts for the engine."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rtp_llm.request.params import PoolingParams, dimensions_problem
from rtp_llm.server.turn.prompts import LONG_TOKEN, check_length
from rtp_llm.server.turn.sampling import check_token_ids
from rtp_llm.server.turn.served_model import NotInline, ServedModel
from rtp_llm.server.types.bounds import MAX_INPUT_TOKENS, MAX_INPUTS, check_count
from rtp_llm.server.types.errors import ApiError, bad_request
from rtp_llm.server.types.jobs import PromptBatch
from rtp_llm.text.rerank_template import Frame

# Texts that are tokenised at a time: what the tokenizer keeps of each is many times its ids.
_SLICE = 64
# Texts that are tokenised in the event loop.
_INLINE_TEXTS = 16

Text: TypeAlias = str | tuple[str, str]
Input: TypeAlias = Text | list[int]


@dataclass(frozen=True)
class Truncation:
    """What becomes of an input that is too long: `keep` tokens of it, -1: as many as fit, None: it
    is refused. `side`: where tokens are left out; of a pair, of its second text. `name`: the field
    of the request that asks for it."""

    keep: int | None = None
    side: str = "right"
    name: str = "truncate_prompt_tokens"

    def length(self, limit: int) -> int | None:
        """The most tokens that are kept; raises ApiError 400 if the model cannot take as many."""
        if self.keep is None:
            return None
        if self.keep != -1 and not 1 <= self.keep <= limit:
            raise bad_request(
                f"{self.name}={self.keep} must be -1 or between 1 and {limit}, the longest input "
                "of this model.",
                param=self.name,
                code="invalid_value",
            )
        return limit if self.keep == -1 else self.keep


@dataclass
class PromptEncoder:
    """Encodes the inputs in the field `param` of a request. `add_special_tokens`: to texts;
    `frame`: around each text, instead of special tokens."""

    model: ServedModel
    param: str
    truncation: Truncation = field(default_factory=Truncation)
    add_special_tokens: bool = True
    frame: Frame | None = None

    def __post_init__(self) -> None:
        self.add_special_tokens &= self.frame is None

    def batch(
        self, inputs: Sequence[Input], params: PoolingParams, cache_salt: str | None = None
    ) -> PromptBatch:
        """The prompts of a request; raises ApiError, and NotInline if it may take long."""
        check_count(self.param, len(inputs), MAX_INPUTS, "inputs")
        if not inputs:
            raise bad_request(f"{self.param}: must not be empty.", self.param, "invalid_value")
        if self.model.inline and len(inputs) > _INLINE_TEXTS:
            raise NotInline
        tokens, lengths = array("i"), []
        for start in range(0, len(inputs), _SLICE):
            for prompt in self._encode(inputs[start : start + _SLICE], start):
                tokens.extend(prompt)
                lengths.append(len(prompt))
            check_count(self.param, len(tokens), MAX_INPUT_TOKENS, "tokens")
        seconds = self._second_texts(inputs)
        return PromptBatch(tokens.tobytes(), lengths, params, cache_salt or "", seconds)

    def _second_texts(self, inputs: Sequence[Input]) -> list[int]:
        """Where second texts begin; empty if none has a token type of its own."""
        firsts = {each[0] for each in inputs if isinstance(each, tuple)}
        if not firsts or self.frame is not None:
            return []
        begins = {first: self.model.tokenizer.second_text(first) for first in firsts}
        if not any(begins.values()):
            return []
        return [begins[each[0]] if isinstance(each, tuple) else 0 for each in inputs]

    def _encode(self, inputs: Sequence[Input], first: int) -> list[list[int]]:
        limit, frame = self.model.limits.max_model_len, self.frame
        most = self.truncation.length(limit)
        if frame is not None and most is not None:
            most = max(1, most - len(frame.before) - len(frame.after))
        texts = [self._shortened(each, most) for each in inputs if not isinstance(each, list)]
        encoded = iter(zip(texts, self._tokenize(texts), strict=True))
        prompts = []
        for place, each in enumerate(inputs, first):
            if isinstance(each, list):
                check_token_ids(self.param, each, self.model.limits)
                ids = each if most is None else self._cut(each, most)
            else:
                text, ids = next(encoded)
                if most is not None and len(ids) > most:
                    ids = self._part(text, most)
                if frame is not None:
                    ids = [*frame.before, *ids, *frame.after]
            if not ids:
                raise self._problem(place, "has no tokens")
            if len(ids) > limit:
                raise self._too_long(place, len(ids), limit)
            prompts.append(ids)
        return prompts

    def _shortened(self, text: Text, most: int | None) -> Text:
        """A text without what cannot be kept, as no token is that long. One that is far too long is
        refused here already."""
        before, part = ("", text) if isinstance(text, str) else text
        limit, tokenizer = self.model.limits.max_model_len, self.model.tokenizer
        check_length(tokenizer, before, limit, self.param)
        if most is None:
            check_length(tokenizer, part, limit, self.param)
            return text
        size = LONG_TOKEN * most
        part = part[-size:] if self.truncation.side == "left" else part[:size]
        return part if isinstance(text, str) else (before, part)

    def _tokenize(self, texts: list[Text]) -> list[list[int]]:
        return self.model.tokenizer.encode_batch(texts, self.add_special_tokens) if texts else []

    def _cut(self, ids: list[int], most: int) -> list[int]:
        return ids[-most:] if self.truncation.side == "left" else ids[:most]

    def _part(self, text: Text, most: int) -> list[int]:
        tokenizer, side = self.model.tokenizer, self.truncation.side
        if isinstance(text, str):
            if not self.add_special_tokens:
                return self._cut(tokenizer.encode(text, False), most)
            return tokenizer.encode_truncated(
                text, most, side="left" if side == "left" else "right"
            )
        try:
            return tokenizer.encode_pair(*text, most)
        except ValueError as error:
            name = self.truncation.name
            raise bad_request(f"{name}: {error}.", name, "invalid_value") from error

    def _too_long(self, place: int, count: int, limit: int) -> ApiError:
        problem = (
            f"has {count} tokens, and this model takes at most {limit}; {self.truncation.name} "
            "shortens it"
        )
        return self._problem(place, problem, "context_length_exceeded")

    def _problem(self, place: int, problem: str, code: str = "invalid_value") -> ApiError:
        return bad_request(f"{self.param}: input {place} {problem}.", self.param, code)


def pooling_params(**fields: Any) -> PoolingParams:
    """The parameters of a request; raises ApiError 400 for a value out of its range."""
    try:
        return PoolingParams(**fields)
    except ValueError as error:
        name = str(error).partition("=")[0]
        raise bad_request(f"{error}.", name, "invalid_value") from error


def with_prompt(inputs: Sequence[Input], name: str | None, model: ServedModel) -> list[Input]:
    """The inputs, texts after the model's prompt ``name`` (None: its default, if it has one).

    Raises ApiError 400 for an unknown name.
    """
    try:
        before = model.prompts.before(name)
    except ValueError as error:
        raise bad_request(f"{error}.", "prompt_name", "invalid_value") from error
    return [before + each if isinstance(each, str) else each for each in inputs]


def check_dimensions(dimensions: int | None, model: ServedModel, param: str = "dimensions") -> None:
    """Raise ApiError 400 for a size that embeddings of the model are not made for."""
    if problem := dimensions_problem(dimensions, model.vector_size, model.matryoshka):
        problem = problem.replace("dimensions", param, 1)
        raise bad_request(f"{problem}.", param, "invalid_value")
