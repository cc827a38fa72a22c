# SPDX-License-Identifier: Apache-2.0
"""The tensor types of GGUF files, with the sizes of their blocks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorType:
    """A tensor type: blocks of `elements` weights along a row, each of `block_bytes` bytes.

    `why_refused` is empty for types whose weights can be computed.
    """

    id: int
    name: str
    elements: int
    block_bytes: int
    why_refused: str = ""


_INTEGERS = "it holds integers, not weights"
_ACTIVATIONS = "it is a form of activations, not of weights"
_CODEBOOK = "its weights are entries of a codebook; take a file of Q4_K_M or Q8_0"
_LATER = "it is not supported yet; take a file of Q4_K_M or Q8_0"

_TYPES = (
    TensorType(0, "F32", 1, 4),
    TensorType(1, "F16", 1, 2),
    TensorType(2, "Q4_0", 32, 18),
    TensorType(3, "Q4_1", 32, 20),
    TensorType(6, "Q5_0", 32, 22),
    TensorType(7, "Q5_1", 32, 24),
    TensorType(8, "Q8_0", 32, 34),
    TensorType(9, "Q8_1", 32, 40, _ACTIVATIONS),
    TensorType(10, "Q2_K", 256, 84),
    TensorType(11, "Q3_K", 256, 110),
    TensorType(12, "Q4_K", 256, 144),
    TensorType(13, "Q5_K", 256, 176),
    TensorType(14, "Q6_K", 256, 210),
    TensorType(15, "Q8_K", 256, 292, _ACTIVATIONS),
    TensorType(16, "IQ2_XXS", 256, 66, _CODEBOOK),
    TensorType(17, "IQ2_XS", 256, 74, _CODEBOOK),
    TensorType(18, "IQ3_XXS", 256, 98, _CODEBOOK),
    TensorType(19, "IQ1_S", 256, 50, _CODEBOOK),
    TensorType(20, "IQ4_NL", 32, 18),
    TensorType(21, "IQ3_S", 256, 110, _CODEBOOK),
    TensorType(22, "IQ2_S", 256, 82, _CODEBOOK),
    TensorType(23, "IQ4_XS", 256, 136),
    TensorType(24, "I8", 1, 1, _INTEGERS),
    TensorType(25, "I16", 1, 2, _INTEGERS),
    TensorType(26, "I32", 1, 4, _INTEGERS),
    TensorType(27, "I64", 1, 8, _INTEGERS),
    TensorType(28, "F64", 1, 8, _LATER),
    TensorType(29, "IQ1_M", 256, 56, _CODEBOOK),
    TensorType(30, "BF16", 1, 2),
    TensorType(34, "TQ1_0", 256, 54, _LATER),
    TensorType(35, "TQ2_0", 256, 66, _LATER),
    TensorType(39, "MXFP4", 32, 17),
    TensorType(40, "NVFP4", 64, 36, _LATER),
    TensorType(41, "Q1_0", 128, 18, _LATER),
)
TYPES = {each.id: each for each in _TYPES}
