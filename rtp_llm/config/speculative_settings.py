# SPDX-License-Identifier: Apache-2.0
"""Settings of speculative decoding, by flags or as vLLM's one JSON object."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypedDict

from rtp_llm.config.options import CheckedSettings, SettingsError, option

# Keys of vLLM's JSON object, with the fields that they set.
_JSON_KEYS = {
    "method": "speculative",
    "model": "speculative_model",
    "num_speculative_tokens": "num_speculative_tokens",
    "num_speculative_tokens_per_batch_size": "num_speculative_tokens_per_batch_size",
    "prompt_lookup_min": "prompt_lookup_min",
    "prompt_lookup_max": "prompt_lookup_max",
    "draft_sample_method": "draft_sample_method",
    "suffix_decoding_max_tree_depth": "suffix_decoding_max_tree_depth",
    "suffix_decoding_max_cached_requests": "suffix_decoding_max_cached_requests",
    "suffix_decoding_max_spec_factor": "suffix_decoding_max_spec_factor",
    "suffix_decoding_min_token_prob": "suffix_decoding_min_token_prob",
}

_TABLE = "num_speculative_tokens_per_batch_size"


# vLLM's names of methods that differ from ours.
_METHODS = {
    **dict.fromkeys(("qwen3_next_mtp", "qwen3_5_mtp", "deepseek_mtp"), "mtp"),
    "draft_model": "draft-model",
}
# The methods that read speculative_model, with what its folder contains.
_FOLDERS = {"eagle3": "a head", "draft-model": "a model"}


class DraftHeadChoice(TypedDict):
    """`mtp`: the model's own layer; `eagle3` and `draft_model`: a folder, or nothing."""

    mtp: bool
    eagle3: str
    draft_model: str


@dataclass(frozen=True, kw_only=True)
class SpeculativeSettings(CheckedSettings):
    """Settings for how draft tokens are proposed, and how many.

    Raises SettingsError naming the field if a value is invalid.
    """

    speculative: str = option(
        "none",
        "text",
        "speculation",
        "Who proposes draft tokens, several of which one step verifies: ngram takes what followed "
        "the last tokens where they occurred before, in the prompt or the answer; suffix what "
        "followed them most often, in answers to others, too; grammar what a request's grammar "
        "leaves no choice about; mtp is the model's own layer of "
        "multi-token prediction, where its folder has one; eagle3 a head that was trained for it, "
        "and draft-model a smaller model of the same vocabulary, in speculative-model. Answers "
        "stay the same.",
        choices=("none", "ngram", "suffix", "grammar", "mtp", "eagle3", "draft-model"),
    )
    speculative_model: str = option(
        "",
        "text",
        "speculation",
        "The folder of the draft head with eagle3, or of the draft model with draft-model.",
        advanced=True,
    )
    num_speculative_tokens: int = option(
        3,
        "integer",
        "speculation",
        "Draft tokens for each sequence in a step, at most.",
        unit="tokens",
        minimum=1,
        maximum=63,
    )
    draft_sample_method: str = option(
        "greedy",
        "text",
        "speculation",
        "With mtp, eagle3 and draft-model, what drafts are for requests that sample: greedy takes "
        "the most likely tokens, of which those are accepted that the model samples; probabilistic "
        "samples them at the request's temperature, and rejection sampling accepts more of them: "
        "tokens have the same distribution, but are others than without drafts.",
        choices=("greedy", "probabilistic"),
        advanced=True,
    )
    speculative_adaptive: bool = option(
        True,
        "switch",
        "speculation",
        "Take fewer drafts, or none, while they cost more time than they save, by what steps with "
        "and without them took and how many were right.",
        advanced=True,
    )
    num_speculative_tokens_per_batch_size: str = option(
        "",
        "text",
        "speculation",
        "Draft tokens by the number of sequences in a step, in place of speculative_adaptive: "
        "[[1, 8, 3], [9, 32, 1], [33, 64, 0]] is 3 up to 8 sequences, 1 up to 32, none above.",
        advanced=True,
    )
    prompt_lookup_min: int = option(
        2,
        "integer",
        "speculation",
        "With ngram, the fewest last tokens that must have occurred before.",
        unit="tokens",
        minimum=1,
        maximum=32,
        advanced=True,
    )
    prompt_lookup_max: int = option(
        4,
        "integer",
        "speculation",
        "With ngram, how many last tokens are looked up first; fewer follow if they did not occur.",
        unit="tokens",
        minimum=1,
        maximum=32,
        advanced=True,
    )
    suffix_decoding_max_tree_depth: int = option(
        24,
        "integer",
        "speculation",
        "With suffix, the most tokens of a match and its draft together.",
        unit="tokens",
        minimum=2,
        maximum=256,
        advanced=True,
    )
    suffix_decoding_max_cached_requests: int = option(
        10000,
        "integer",
        "speculation",
        "With suffix, how many answers to other requests are looked at, the latest of them; the "
        "older half is forgotten at once. 0: none.",
        unit="answers",
        minimum=0,
        maximum=1000000,
        advanced=True,
    )
    suffix_decoding_max_spec_factor: float = option(
        1.0,
        "number",
        "speculation",
        "With suffix, the most draft tokens for each token of the match.",
        minimum=0.01,
        maximum=64,
        advanced=True,
    )
    suffix_decoding_min_token_prob: float = option(
        0.1,
        "number",
        "speculation",
        "With suffix, how probable a draft must be up to each of its tokens, by how often they "
        "occurred.",
        minimum=0,
        maximum=1,
        advanced=True,
    )
    speculative_config: str = option(
        "",
        "text",
        "speculation",
        "The settings of this group as one JSON object, as vLLM takes them: "
        '{"method": "ngram", "num_speculative_tokens": 3}.',
        advanced=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.speculative_config:
            for key, value in _parse(self.speculative_config).items():
                known = key == "method" and isinstance(value, str)
                self._set(key, _METHODS.get(value, value) if known else value)
        folder = _FOLDERS.get(self.speculative)
        if folder is not None and not self.speculative_model:
            raise SettingsError(
                f"speculative_model: with {self.speculative} it must name the folder of {folder}"
            )
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise SettingsError(
                f"prompt_lookup_min: {self.prompt_lookup_min} is above prompt_lookup_max, "
                f"{self.prompt_lookup_max}"
            )
        _ = self.draft_table

    @property
    def draft_table(self) -> tuple[tuple[int, int, int], ...]:
        """Rows of (first, last batch size, draft tokens), in order and from 1 on; may be empty."""
        text = self.num_speculative_tokens_per_batch_size
        try:
            rows = json.loads(text or "[]")
            table = tuple((first, last, tokens) for first, last, tokens in rows)
        except (TypeError, ValueError) as error:
            raise SettingsError(
                f"{_TABLE}: {text!r} is not a list of [first, last, tokens]"
            ) from error
        following = 1
        for first, last, tokens in table:
            if not all(type(value) is int for value in (first, last, tokens)):
                raise SettingsError(f"{_TABLE}: {text!r} has entries that are not whole numbers")
            if first != following or last < first:
                raise SettingsError(
                    f"{_TABLE}: [{first}, {last}, {tokens}] must begin with {following}, and not "
                    "end before that"
                )
            if not 0 <= tokens <= self.num_speculative_tokens:
                raise SettingsError(
                    f"{_TABLE}: {tokens} draft tokens are not from 0 to num_speculative_tokens, "
                    f"{self.num_speculative_tokens}"
                )
            following = last + 1
        return table

    @property
    def draft_head(self) -> DraftHeadChoice:
        """The arguments of load_model that select a draft head or draft model."""
        folders = {self.speculative: self.speculative_model}
        return {
            "mtp": self.speculative == "mtp",
            "eagle3": folders.get("eagle3", ""),
            "draft_model": folders.get("draft-model", ""),
        }

    @property
    def has_draft_head(self) -> bool:
        """Whether a draft head or a separate draft model proposes tokens."""
        return self.speculative in ("mtp", "eagle3", "draft-model")

    @property
    def samples_drafts(self) -> bool:
        """Whether drafts are sampled, and verified against the distribution they came from."""
        return self.has_draft_head and self.draft_sample_method == "probabilistic"

    @property
    def reads_folder(self) -> bool:
        """Whether the method loads the model folder `speculative_model`."""
        return self.speculative in _FOLDERS

    def _set(self, key: str, value: Any) -> None:
        """Set the field that corresponds to `key` of the JSON object."""
        if key not in _JSON_KEYS:
            known = ", ".join(_JSON_KEYS)
            raise SettingsError(f"speculative_config: {key!r} is not known; there are {known}")
        name = _JSON_KEYS[key]
        if name == _TABLE and isinstance(value, list):
            value = json.dumps(value)
        field = self.__dataclass_fields__[name]
        found = getattr(self, name)
        if found not in (field.default, value):
            raise SettingsError(
                f"{name}: {found!r} here and {value!r} in speculative_config; say it once"
            )
        field.metadata["option"].check(f"speculative_config: {key}", value)
        object.__setattr__(self, name, value)


def _parse(text: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise SettingsError(f"speculative_config: {text!r} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise SettingsError(f"speculative_config: {text!r} is not a JSON object")
    return values
