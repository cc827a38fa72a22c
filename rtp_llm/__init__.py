# SPDX-License-Identifier: Apache-2.0
"""RTP-LLM: one LLM inference engine for CPU, NVIDIA, AMD and Intel machines.

Importing the package is cheap: the public names are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rtp_llm.llm import LLM
    from rtp_llm.offline.outputs import EmbeddingRequestOutput, RequestOutput
    from rtp_llm.request.params import PoolingParams
    from rtp_llm.request.sampling_params import SamplingParams, StructuredOutputsParams

__version__ = "0.1.0"

_PUBLIC = {
    "LLM": "rtp_llm.llm",
    "EmbeddingRequestOutput": "rtp_llm.offline.outputs",
    "PoolingParams": "rtp_llm.request.params",
    "RequestOutput": "rtp_llm.offline.outputs",
    "SamplingParams": "rtp_llm.request.sampling_params",
    "StructuredOutputsParams": "rtp_llm.request.sampling_params",
}

__all__ = [
    "LLM",
    "EmbeddingRequestOutput",
    "PoolingParams",
    "RequestOutput",
    "SamplingParams",
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
