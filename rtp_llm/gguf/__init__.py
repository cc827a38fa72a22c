# SPDX-License-Identifier: Apache-2.0
"""Reads GGUF files, the format of llama.cpp: metadata and places of tensors, without torch.

Files are untrusted: every count, length and offset is checked against the file's size before it is
used, and what is read never takes more memory than a small multiple of the header.
"""

from __future__ import annotations

from rtp_llm.gguf.cursor import GgufError
from rtp_llm.gguf.describe import describe
from rtp_llm.gguf.file import GgufTensor
from rtp_llm.gguf.metadata import Metadata
from rtp_llm.gguf.model import GgufModel, is_gguf, language_model, open_model
from rtp_llm.gguf.types import TensorType

__all__ = [
    "GgufError",
    "GgufModel",
    "GgufTensor",
    "Metadata",
    "TensorType",
    "describe",
    "is_gguf",
    "language_model",
    "open_model",
]
