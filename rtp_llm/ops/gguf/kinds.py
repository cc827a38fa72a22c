# SPDX-License-Identifier: Apache-2.0
"""The tensor types of GGUF files that gguf_linear takes."""

from __future__ import annotations

# Bytes of a block.
BLOCK_BYTES = {
    "Q4_0": 18,
    "Q4_1": 20,
    "Q5_0": 22,
    "Q5_1": 24,
    "Q8_0": 34,
    "Q2_K": 84,
    "Q3_K": 110,
    "Q4_K": 144,
    "Q5_K": 176,
    "Q6_K": 210,
    "IQ4_NL": 18,
    "IQ4_XS": 136,
    "MXFP4": 17,
}
# Those whose products have kernels of their own; the others become floats, part by part.
INTERLEAVED = frozenset({"Q4_0", "Q5_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K"})
