# SPDX-License-Identifier: Apache-2.0
"""What tests expect of rows that an operator has quantised to block-scaled FP8."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.fp8 import fp8_blocks


def assert_quantized(q: Tensor, scales: Tensor, expected: Tensor) -> None:
    """q e4m3 [T, K] and scales as rtp_llm.ops.norm_fp8 gives them are those of float32 `expected`.

    A sum in another order may move few numbers to their neighbour.
    """
    rows, columns = expected.shape
    assert q.dtype == fp8_blocks.E4M3 and q.shape == expected.shape and q.is_contiguous()
    assert scales.shape == (columns // fp8_blocks.BLOCK, fp8_blocks.scale_rows(rows))
    assert not scales[:, rows:].any(), "padding is zeros"
    numbers, row_scales = fp8_blocks.quantize_rows(expected)
    found = fp8_blocks.row_major(scales, rows)
    torch.testing.assert_close(found, row_scales, rtol=1e-4, atol=0)
    if not rows:
        return
    assert (q.float() != numbers.float()).float().mean() < 0.01
    values = fp8_blocks.dequantize_rows(q, found)
    tolerance = 2 * float(row_scales.max()) * 2**-9
    torch.testing.assert_close(values, expected, rtol=0.07, atol=tolerance)
