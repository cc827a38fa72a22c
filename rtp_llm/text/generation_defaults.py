# SPDX-License-Identifier: Apache-2.0
"""Defaults of sampling that a model's generation_config.json asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rtp_llm.model_folder import ModelFilesError, finite, shown
from rtp_llm.request.sampling_params import SamplingParams

_FILE = Path("generation_config.json")
_ADVICE = "mend it, or set --use-generation-config off"

# Field of GenerationDefaults -> key of the file, where they differ.
_KEYS = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}
_NUMBERS = ("temperature", "top_p", "min_p", "typical_p", "repetition_penalty")
_INTEGERS = ("top_k", "no_repeat_ngram_size", "max_tokens", "min_tokens")
HONOURED = frozenset(
    {"do_sample", "eos_token_id", *_NUMBERS, *(_KEYS.get(name, name) for name in _INTEGERS)}
)
# Keys of transformers' GenerationConfig that change answers and are not honoured -> the value with
# which they ask for nothing; null, false and empty never do.
UNSUPPORTED: dict[str, Any] = {
    "begin_suppress_tokens": None,
    "bad_words_ids": None,
    "constraints": None,
    "dola_layers": None,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1,
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "exponential_decay_length_penalty": None,
    "force_words_ids": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "guidance_scale": 1,
    "max_length": None,
    "max_time": None,
    "min_length": 0,
    "num_beam_groups": 1,
    "num_beams": 1,
    "num_return_sequences": 1,
    "penalty_alpha": 0,
    "remove_invalid_values": None,
    "sequence_bias": None,
    "stop_strings": None,
    "suppress_tokens": None,
    "token_healing": None,
    "top_h": None,
    "watermarking_config": None,
}
# Keys that change no answer: of caches, compilation and outputs; of beams, which num_beams speaks
# for, and encoders; of drafts.
_WITHOUT_EFFECT = """
    bos_token_id cache_config cache_implementation compile_config continuous_batching_config
    disable_compile low_memory max_cache_len output_attentions output_hidden_states
    output_logits output_scores pad_token_id prefill_chunk_size renormalize_logits
    return_dict_in_generate transformers_version use_cache
    decoder_start_token_id diversity_penalty early_stopping length_penalty
    assistant_confidence_threshold assistant_early_exit assistant_ensemble_weight
    assistant_lookbehind is_assistant max_matching_ngram_size num_assistant_tokens
    num_assistant_tokens_schedule prompt_lookup_num_tokens speculation_type target_lookbehind
    use_mtp
"""
WITHOUT_EFFECT = frozenset(_WITHOUT_EFFECT.split())


@dataclass(frozen=True)
class GenerationDefaults:
    """Defaults for values that a request leaves out; None: OpenAI's default applies.

    `do_sample: false` means greedy decoding, so temperature 0.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None

    @classmethod
    def read(cls, generation_config: Mapping[str, Any], file: Path = _FILE) -> GenerationDefaults:
        """Read the defaults from the content of generation_config.json.

        Raises ModelFilesError naming the file and the key if a value would be invalid in a request.
        """
        values: dict[str, Any] = {
            **{name: _number(generation_config, name, file) for name in _NUMBERS},
            **{name: _integer(generation_config, name, file) for name in _INTEGERS},
        }
        if _switch(generation_config, "do_sample", file) is False:
            values["temperature"] = 0.0
        defaults = cls(**values)
        try:
            defaults.params()
        except ValueError as error:
            words = str(error)
            for name, key in _KEYS.items():
                words = words.replace(name, key)
            raise ModelFilesError(f"{file}: {words}; {_ADVICE}") from error
        return defaults

    def params(self) -> SamplingParams:
        """Sampling parameters with these defaults applied over OpenAI's."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return SamplingParams(
            **{name: value for name, value in values.items() if value is not None}
        )

    def pick(self, name: str, requested: Any, fallback: Any) -> Any:
        """The request's value, else this model's, else `fallback`."""
        if requested is not None:
            return requested
        own = getattr(self, name)
        return fallback if own is None else own


def not_honoured(generation_config: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys of generation_config.json that would change answers and do not, or that nobody knows."""
    found = []
    for key, value in generation_config.items():
        if key in HONOURED or key in WITHOUT_EFFECT or key.startswith("_") or not value:
            continue
        if key in UNSUPPORTED and value == UNSUPPORTED[key]:
            continue
        # As in transformers, max_new_tokens overrules the length with the prompt.
        if key == "max_length" and generation_config.get("max_new_tokens") is not None:
            continue
        found.append(key)
    return tuple(found)


def _number(values: Mapping[str, Any], name: str, file: Path) -> float | None:
    value = values.get(name)
    number = finite(value)
    if number is None and value is not None:
        raise _wrong(file, name, "a finite number", value)
    return number


def _integer(values: Mapping[str, Any], name: str, file: Path) -> int | None:
    key = _KEYS.get(name, name)
    value = values.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise _wrong(file, key, "a whole number", value)
    return value


def _switch(values: Mapping[str, Any], name: str, file: Path) -> bool | None:
    value = values.get(name)
    if value is not None and not isinstance(value, bool):
        raise _wrong(file, name, "true or false", value)
    return value


def _wrong(file: Path, key: str, wanted: str, value: object) -> ModelFilesError:
    return ModelFilesError(f"{file}: {key} must be {wanted}; not {shown(value)}; {_ADVICE}")
