"""Defaults of sampling that a model's generation_config.json asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from rtp_llm.sampling_params import SamplingParams


@dataclass(frozen=True)
class GenerationDefaults:
    """What holds where a request is silent; None: OpenAI's default holds.

    `do_sample: false` means greedy decoding, so temperature 0.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    max_tokens: int | None = None

    @classmethod
    def read(cls, generation_config: Mapping[str, Any]) -> GenerationDefaults:
        """From the content of generation_config.json; values of a wrong type are left out."""
        temperature = _number(generation_config, "temperature")
        if generation_config.get("do_sample") is False:
            temperature = 0.0
        return cls(
            temperature=temperature,
            top_p=_number(generation_config, "top_p"),
            top_k=_integer(generation_config, "top_k"),
            min_p=_number(generation_config, "min_p"),
            repetition_penalty=_number(generation_config, "repetition_penalty"),
            no_repeat_ngram_size=_integer(generation_config, "no_repeat_ngram_size"),
            max_tokens=_integer(generation_config, "max_new_tokens"),
        )

    def params(self) -> SamplingParams:
        """These over OpenAI's defaults; ValueError names the first that no request could have."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return SamplingParams(
            **{name: value for name, value in values.items() if value is not None}
        )

    def pick(self, name: str, asked: Any, fallback: Any) -> Any:
        """The request's value, else this model's, else `fallback`."""
        if asked is not None:
            return asked
        own = getattr(self, name)
        return fallback if own is None else own


def _number(values: Mapping[str, Any], name: str) -> float | None:
    value = values.get(name)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if value is not None and is_number else None


def _integer(values: Mapping[str, Any], name: str) -> int | None:
    value = values.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
