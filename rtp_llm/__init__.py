# SPDX-License-Identifier: Apache-2.0
"""RTP-LLM: one LLM inference engine for CPU, NVIDIA, AMD and Intel machines.

Importing the package is cheap: the public names are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rtp_llm.llm import LLM
    from rtp_llm.offline.beam_search import BeamSearchOutput
    from rtp_llm.offline.outputs import (
        ClassificationRequestOutput,
        EmbeddingRequestOutput,
        PoolingRequestOutput,
        RankedDocument,
        RequestOutput,
        ScoringRequestOutput,
    )
    from rtp_llm.request.beam_search import BeamSearchParams
    from rtp_llm.request.params import PoolingParams
    from rtp_llm.request.sampling_params import SamplingParams, StructuredOutputsParams

__version__ = "0.1.0"

_PUBLIC = {
    "LLM": "rtp_llm.llm",
    "BeamSearchOutput": "rtp_llm.offline.beam_search",
    "BeamSearchParams": "rtp_llm.request.beam_search",
    "ClassificationRequestOutput": "rtp_llm.offline.outputs",
    "EmbeddingRequestOutput": "rtp_llm.offline.outputs",
    "PoolingParams": "rtp_llm.request.params",
    "PoolingRequestOutput": "rtp_llm.offline.outputs",
    "RankedDocument": "rtp_llm.offline.outputs",
    "RequestOutput": "rtp_llm.offline.outputs",
    "SamplingParams": "rtp_llm.request.sampling_params",
    "ScoringRequestOutput": "rtp_llm.offline.outputs",
    "StructuredOutputsParams": "rtp_llm.request.sampling_params",
}

__all__ = [
    "LLM",
    "BeamSearchOutput",
    "BeamSearchParams",
    "ClassificationRequestOutput",
    "EmbeddingRequestOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "RankedDocument",
    "RequestOutput",
    "SamplingParams",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "__version__",
]


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'rtp_llm' has no attribute {name!r}")
    from rtp_llm.interrupts import brief_when_interrupted

    with brief_when_interrupted("importing rtp_llm"):
        return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)
