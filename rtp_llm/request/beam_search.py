# SPDX-License-Identifier: Apache-2.0
"""Beam search: the best sequences instead of samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from rtp_llm.request.sampling_params import MAX_SEQUENCES, StructuredOutputsParams

MAX_LENGTH_PENALTY = 100
MAX_DIVERSITY_PENALTY = 1000


class BeamSearch(msgspec.Struct, frozen=True, kw_only=True):
    """How the ``n`` sequences of a request are chosen.

    Sequences are ranked by the sum of their log-probabilities over their length in generated
    tokens, a final stop token included, to the power of ``length_penalty``. ``early_stopping``, as
    in transformers: True ends the search with the n-th sequence that has ended, False once the best
    open one is worse at its present length than all of n, "never" once it must be worse at any
    length. ``num_return_sequences``: how many of the best are given, None: all.

    ``num_beam_groups`` divide the ``n`` beams; a group chooses after the ones before it, and its
    candidates lose ``diversity_penalty`` for each time that these have chosen the same token in the
    same step, in its sums and ranks too. ``variable_num_beams``: the number of beams after each
    step, the last one for all later steps; the largest is ``n``, and as many sequences as the last
    one are kept and given.
    """

    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    num_return_sequences: int | None = None
    num_beam_groups: int = 1
    diversity_penalty: float = 0.0
    variable_num_beams: tuple[int, ...] = ()

    def problem(self, beams: int) -> str | None:
        """What is wrong with the shape of a search of ``beams`` beams, and what to change."""
        groups, widths = self.num_beam_groups, self.variable_num_beams
        if groups < 1 or beams % groups:
            return f"num_beam_groups={groups} must divide the {beams} beams"
        if not 0 <= self.diversity_penalty <= MAX_DIVERSITY_PENALTY:
            most = MAX_DIVERSITY_PENALTY
            return f"diversity_penalty={self.diversity_penalty} must be from 0 to {most}"
        if self.diversity_penalty and groups == 1:
            return "diversity_penalty needs num_beam_groups above 1"
        if not widths:
            return None
        if groups > 1:
            return "variable_num_beams cannot be combined with num_beam_groups: send one of them"
        if min(widths) < 1 or max(widths) != beams:
            return (
                f"variable_num_beams={[*widths]} must be at least 1 each, and the largest one "
                f"must be the {beams} beams"
            )
        return None


class BeamSearchParams(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of `LLM.beam_search`, in vLLM's names.

    ``beam_width`` sequences are kept, and the ``n`` best ones given, None: all. Tokens are scored
    by the model's own distribution, so ``temperature`` must be 0. An end-of-sequence or stop token
    is given only with ``include_stop_str_in_output``; it counts in ranks and sums either way.
    ``length_penalty``, ``early_stopping``, ``num_beam_groups``, ``diversity_penalty`` and
    ``variable_num_beams``: see BeamSearch. vLLM counts the prompt, too, in the length. The fields
    from ``stop`` on are those of SamplingParams, which checks them when a search begins: they
    change log-probabilities, or forbid tokens, and what is left is added up.

    Raises:
        ValueError: a value is out of its range; the text names it.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    early_stopping: bool | Literal["never"] = False
    stop_token_ids: Sequence[int] = ()
    n: int | None = None
    num_beam_groups: int = 1
    diversity_penalty: float = 0.0
    variable_num_beams: Sequence[int] = ()
    stop: str | Sequence[str] = ()
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    logit_bias: dict[int, float] = {}
    allowed_token_ids: Sequence[int] | None = None
    bad_words: str | Sequence[str] = ()
    structured_outputs: StructuredOutputsParams | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.beam_width <= MAX_SEQUENCES:
            raise ValueError(f"beam_width={self.beam_width} must be from 1 to {MAX_SEQUENCES}")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens={self.max_tokens} must be at least 1")
        if self.temperature != 0:
            raise ValueError(
                f"temperature={self.temperature} must be 0: beams are scored by the model's own "
                "distribution"
            )
        if not abs(self.length_penalty) <= MAX_LENGTH_PENALTY:
            raise ValueError(
                f"length_penalty={self.length_penalty} must be from -{MAX_LENGTH_PENALTY} to "
                f"{MAX_LENGTH_PENALTY}"
            )
        if self.early_stopping not in (False, True, "never"):
            raise ValueError(
                f"early_stopping={self.early_stopping!r} must be True, False or 'never'"
            )
        kept = [*self.variable_num_beams][: self.max_tokens][-1:] or [self.beam_width]
        if self.n is not None and not 1 <= self.n <= kept[0]:
            raise ValueError(f"n={self.n} must be from 1 to the {kept[0]} sequences that are kept")
        if problem := self.search().problem(self.beam_width):
            raise ValueError(problem)

    def search(self) -> BeamSearch:
        """How the sequences are chosen."""
        return BeamSearch(
            length_penalty=self.length_penalty,
            early_stopping=self.early_stopping,
            num_return_sequences=self.n,
            num_beam_groups=self.num_beam_groups,
            diversity_penalty=self.diversity_penalty,
            variable_num_beams=tuple(self.variable_num_beams),
        )
