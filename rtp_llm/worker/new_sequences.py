# SPDX-License-Identifier: Apache-2.0
"""What a worker receives about sequences before a plan names them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rtp_llm.request.mm_features import MultiModalFeature
from rtp_llm.request.params import RequestParams
from rtp_llm.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from rtp_llm.worker.heads.logits_processor import LogitsProcessor


@dataclass(frozen=True)
class NewSequences:
    """The sequences of one request; plans name them by ``ids``, their settings by ``slots``.

    ``stop_ids`` are forbidden before ``min_tokens``. ``constrained``: masks limit what they may
    sample. ``beam_search``: they are beams, whose most likely tokens are scored.
    ``mm_features``: embeddings for some of the prompt's tokens, by offset.
    ``extra_key``: see AddRequest.
    """

    ids: Sequence[int]
    slots: Sequence[int]
    seeds: Sequence[int]
    prompt: NDArray[np.int32]
    params: RequestParams
    stop_ids: Sequence[int]
    processors: Sequence[LogitsProcessor] = ()
    constrained: bool = False
    beam_search: bool = False
    mm_features: Sequence[MultiModalFeature] = ()
    extra_key: str = ""

    @property
    def prompt_only(self) -> bool:
        """Whether they end with their prompt: nothing is sampled."""
        return not isinstance(self.params, SamplingParams)

    @property
    def sampling(self) -> SamplingParams:
        """The ``params`` of sequences that sample tokens."""
        assert isinstance(self.params, SamplingParams)
        return self.params
