# SPDX-License-Identifier: Apache-2.0
"""What a worker receives about sequences before a plan names them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rtp_llm.request.mm_features import MultiModalFeature
from rtp_llm.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from rtp_llm.worker.heads.logits_processor import LogitsProcessor


@dataclass(frozen=True)
class NewSequences:
    """The sequences of one request; plans name them by ``ids``, their settings by ``slots``.

    ``stop_ids`` are forbidden before ``params.min_tokens``. ``pooling`` (of a single sequence) asks
    for the mean of the prompt's hidden states. ``constrained``: masks limit what they may sample.
    ``mm_features``: embeddings for some of the prompt's tokens, by offset.
    ``extra_key``: see AddRequest.
    """

    ids: Sequence[int]
    slots: Sequence[int]
    seeds: Sequence[int]
    prompt: NDArray[np.int32]
    params: SamplingParams
    stop_ids: Sequence[int]
    processors: Sequence[LogitsProcessor] = ()
    pooling: bool = False
    constrained: bool = False
    mm_features: Sequence[MultiModalFeature] = ()
    extra_key: str = ""
