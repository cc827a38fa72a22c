# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch references of block-scaled FP8 GEMMs: float32 products of dequantised operands.
`swap_ab`, `expected_m` and `num_sms` tune kernels and change nothing here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.fp8.fp8_activation_reference import fp8_quantize_reference
from rtp_llm.ops.fp8.fp8_blocks import (
    BLOCK,
    E4M3,
    dequantize_rows,
    dequantize_weight,
    num_blocks,
    row_major,
    scale_rows,
)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise RuntimeError(f"fp8 gemm: {message}")


def check_operands(q: Tensor, scales: Tensor, weight: Tensor, weight_scales: Tensor) -> None:
    """RuntimeError unless dtypes and shapes fit; q and weight have the same leading axes."""
    _require(q.dtype == E4M3 and weight.dtype == E4M3, f"dtypes {q.dtype}, {weight.dtype}")
    _require(
        scales.dtype == torch.float32 and weight_scales.dtype == torch.float32,
        f"scales are {scales.dtype} and {weight_scales.dtype}; expected float32",
    )
    rows, columns = q.shape[-2:]
    outputs = weight.shape[-2]
    _require(
        q.shape[:-2] == weight.shape[:-2],
        f"q is {tuple(q.shape)}, weight {tuple(weight.shape)}; expected equal leading axes",
    )
    _require(columns == weight.shape[-1], f"q has {columns} columns, weight {weight.shape[-1]}")
    _require(columns % BLOCK == 0, f"{columns} columns; expected a multiple of {BLOCK}")
    _require(outputs % 64 == 0, f"{outputs} outputs; expected a multiple of 64")
    groups, padded = columns // BLOCK, scale_rows(rows)
    _require(
        scales.shape == (*q.shape[:-2], groups, padded),
        f"scales are {tuple(scales.shape)}; expected {(*q.shape[:-2], groups, padded)}",
    )
    tiles = (*weight.shape[:-2], num_blocks(outputs), groups)
    _require(
        weight_scales.shape == tiles,
        f"weight_scales are {tuple(weight_scales.shape)}; expected {tiles}",
    )


def _product(q: Tensor, scales: Tensor, weight: Tensor, weight_scales: Tensor) -> Tensor:
    x = dequantize_rows(q, scales)
    product: Tensor = x @ dequantize_weight(weight, weight_scales).T
    return product.to(torch.bfloat16)


def fp8_linear_reference(
    q: Tensor,
    scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    num_sms: int = -1,
    swap_ab: bool | None = None,
) -> Tensor:
    """Plain PyTorch reference of `ops.fp8_linear`: same arguments and results."""
    _require(q.dim() == 2 and weight.dim() == 2, "q and weight have 2 axes")
    check_operands(q, scales, weight, weight_scales)
    return _product(q, row_major(scales, q.shape[0]), weight, weight_scales)


def _grouped_into(
    output: Tensor,
    q: Tensor,
    scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    masked_m: Tensor,
) -> None:
    check_operands(q, scales, weight, weight_scales)
    groups, most = q.shape[:2]
    _require(
        masked_m.dtype == torch.int32 and masked_m.shape == (groups,),
        f"masked_m is {masked_m.dtype} {tuple(masked_m.shape)}; expected int32 [{groups}]",
    )
    _require(
        output.dtype == torch.bfloat16 and output.shape == (groups, most, weight.shape[1]),
        f"output is {output.dtype} {tuple(output.shape)}; expected bfloat16 [G, Mmax, N]",
    )
    for group, valid in enumerate(masked_m.tolist()):
        rows = max(0, min(valid, most))
        x_scales = row_major(scales[group], rows)
        output[group, :rows] = _product(
            q[group, :rows], x_scales, weight[group], weight_scales[group]
        )


def fp8_grouped_masked_reference(
    q: Tensor,
    scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    masked_m: Tensor,
    expected_m: int,
    num_sms: int = -1,
    swap_ab: bool | None = None,
) -> Tensor:
    """Plain PyTorch reference of `ops.fp8_grouped_masked`: same arguments and results."""
    _require(q.dim() == 3 and weight.dim() == 3, "q and weight have 3 axes")
    output = q.new_zeros((*q.shape[:2], weight.shape[1]), dtype=torch.bfloat16)
    _grouped_into(output, q, scales, weight, weight_scales, masked_m)
    return output


def fp8_grouped_contiguous_reference(
    q: Tensor,
    scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    m_indices: Tensor,
    num_sms: int = -1,
) -> Tensor:
    """Plain PyTorch reference of `ops.fp8_grouped_contiguous`: same arguments and results."""
    _require(weight.dim() == 3 and weight_scales.dim() == 3, "weights and their scales have 3 axes")
    _require(m_indices.dtype == torch.int32 and m_indices.shape == q.shape[:1], "m_indices")
    check_operands(q, scales, weight[0], weight_scales[0])
    result = q.new_zeros((q.shape[0], weight.shape[1]), dtype=torch.bfloat16)
    x_scales = row_major(scales, q.shape[0])
    for group in sorted(set(m_indices.tolist())):
        if 0 <= group < len(weight):
            rows = m_indices == group
            result[rows] = _product(
                q.view(torch.uint8)[rows].view(E4M3),
                x_scales[rows],
                weight[group],
                weight_scales[group],
            )
    return result


def fp8_grouped_ragged_reference(
    q: Tensor,
    scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    starts: Tensor,
    counts: Tensor,
    expected_m: int,
    num_sms: int = -1,
    swap_ab: bool | None = None,
) -> Tensor:
    """Plain PyTorch reference of `ops.fp8_grouped_ragged`: same arguments and results."""
    _require(weight.dim() == 3 and weight_scales.dim() == 3, "weights and their scales have 3 axes")
    for what, numbers, length in (("starts", starts, 1), ("counts", counts, 0)):
        _require(
            numbers.dtype == torch.int32 and numbers.shape == (len(weight) + length,),
            f"{what} is {numbers.dtype} {tuple(numbers.shape)}, of {len(weight)} groups",
        )
    check_operands(q, scales, weight[0], weight_scales[0])
    result = q.new_zeros((q.shape[0], weight.shape[1]), dtype=torch.bfloat16)
    x_scales = row_major(scales, q.shape[0])
    for group, (first, count) in enumerate(zip(starts.tolist(), counts.tolist(), strict=False)):
        rows = slice(first, first + count)
        result[rows] = _product(q[rows], x_scales[rows], weight[group], weight_scales[group])
    return result


def deep_gemm_fp8_reference(
    lhs: Tensor,
    rhs_data: Tensor,
    rhs_scale: Tensor,
    user_deep_gemm_num_sm: int = -1,
    swap_ab: bool | None = None,
) -> Tensor:
    """Plain PyTorch reference of `ops.deep_gemm_fp8`: same arguments and results."""
    _require(lhs.dim() == 2, f"lhs is {tuple(lhs.shape)}; expected [M, K]")
    q, scales = fp8_quantize_reference(lhs)
    return fp8_linear_reference(q, scales, rhs_data, rhs_scale)


def deep_gemm_grouped_fp8_masked_reference(
    lhs: Tensor,
    rhs_data: Tensor,
    rhs_scale: Tensor,
    output: Tensor,
    masked_m: Tensor,
    expected_m: int,
    user_deep_gemm_num_sm: int = -1,
    lhs_scale: Tensor | None = None,
    swap_ab: bool | None = None,
) -> None:
    """Plain PyTorch reference of `ops.deep_gemm_grouped_fp8_masked`: same arguments and results."""
    _require(lhs.dim() == 3, f"lhs is {tuple(lhs.shape)}; expected [G, Mmax, K]")
    _require(
        (lhs.dtype == E4M3) == (lhs_scale is not None),
        "lhs_scale belongs to an lhs of e4m3, and to no other",
    )
    q, scales = (lhs, lhs_scale) if lhs_scale is not None else fp8_quantize_reference(lhs)
    _grouped_into(output, q, scales, rhs_data, rhs_scale, masked_m)
