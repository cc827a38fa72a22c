# SPDX-License-Identifier: Apache-2.0
"""GEMMs of block-scaled FP8: x [M, K] times weight [N, K] transposed, in four forms.

Activations come from rtp_llm.ops.fp8.fp8_activation: q e4m3 with a float32 scale for each 128
channels of a row, scales column-major [K / 128, M rounded up to 4]. Weights are e4m3 with a scale
for each 128x128 tile. Sums are float32, results bfloat16. N is a multiple of 64, K of 128.
RuntimeError on a mismatch. `num_sms` limits the multiprocessors; -1 leaves it to
rtp_llm.ops.fp8.fp8_gemm_choice, which also says where swap-AB is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rtp_llm.ops.declare import MutableTensor, operator
from rtp_llm.ops.fp8 import fp8_deep_gemm, fp8_gemm_choice, fp8_library
from rtp_llm.ops.fp8.fp8_activation import fp8_quantize
from rtp_llm.ops.registry import Operator


def _sms(num_sms: int) -> int:
    return fp8_gemm_choice.current().num_sms if num_sms == fp8_gemm_choice.ALL_SMS else num_sms


def _linear_swaps(x: Tensor, swap_ab: bool | None) -> bool:
    if swap_ab is not None:
        return swap_ab
    return fp8_gemm_choice.current().swaps_linear(x.shape[0], x.shape[-1])


def _masked_swaps(expected_m: int, most: int, swap_ab: bool | None) -> bool:
    if swap_ab is not None:
        return swap_ab
    return fp8_gemm_choice.current().swaps_masked(expected_m, most)


def _left_open(num_sms: int, swap_ab: bool | None) -> bool:
    """Whether a library may multiply: they know neither limits nor swap-AB."""
    return swap_ab is None and _sms(num_sms) == fp8_gemm_choice.ALL_SMS


def _library_for(
    x: Tensor, weight: Tensor, num_sms: int, swap_ab: bool | None
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | None:
    """The plain product of the library that was quicker at these sizes, if there is one."""
    if x.dim() != 2 or weight.dim() != 2 or not _left_open(num_sms, swap_ab):
        return None
    if fp8_deep_gemm.takes(x, weight):
        return fp8_deep_gemm.product
    left = fp8_gemm_choice.current().leaves_to_library(x.shape[0], *weight.shape)
    return fp8_library.product if left and fp8_library.takes(x, weight) else None


def _linear(kernel: Operator, given: dict[str, Any]) -> Any:
    q, weight, swap_ab = given["q"], given["weight"], given["swap_ab"]
    library = _library_for(q, weight, given["num_sms"], swap_ab)
    if library is not None:
        return library(q, given["scales"], weight, given["weight_scales"])
    given["num_sms"] = _sms(given["num_sms"])
    given["swap_ab"] = _linear_swaps(q, swap_ab)
    return kernel.call(*given.values())


@operator(composite=True, dispatch=_linear)
def fp8_linear(
    q: Tensor,
    scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    num_sms: int = -1,
    swap_ab: bool | None = None,
) -> Tensor:
    """bfloat16 [M, N] of q [M, K] and weight [N, K]; swap_ab: by the table unless given.

    Where they were quicker, cuBLASLt or DeepGEMM multiply.
    """
    return q.new_empty((q.shape[0], weight.shape[0]), dtype=torch.bfloat16)


def _masked(kernel: Operator, given: dict[str, Any]) -> Any:
    q, weight, expected_m = given["q"], given["weight"], given["expected_m"]
    left_open = q.dim() == weight.dim() == 3 and _left_open(given["num_sms"], given["swap_ab"])
    if left_open and fp8_deep_gemm.takes_masked(q, weight, expected_m):
        operands = (q, given["scales"], weight, given["weight_scales"])
        return fp8_deep_gemm.masked(*operands, given["masked_m"], expected_m)
    given["num_sms"] = _sms(given["num_sms"])
    given["swap_ab"] = _masked_swaps(expected_m, q.shape[-2], given["swap_ab"])
    return kernel.call(*given.values())


@operator(composite=True, dispatch=_masked)
def fp8_grouped_masked(
    q: Tensor,
    scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    masked_m: Tensor,
    expected_m: int,
    num_sms: int = -1,
    swap_ab: bool | None = None,
) -> Tensor:
    """bfloat16 [G, Mmax, N] of q [G, Mmax, K] and weight [G, N, K]: of group g the first
    masked_m[g] rows, which are never read on the host; the others are anything.

    scales [G, K / 128, Mmax rounded up to 4], weight_scales [G, ceil(N / 128), K / 128], masked_m
    int32 [G]. `expected_m` is how many rows a group has as a rule: it tunes, the result does not
    depend on it, and 0 says that nothing is known.
    """
    return q.new_empty((*q.shape[:2], weight.shape[1]), dtype=torch.bfloat16)


def _contiguous(kernel: Operator, given: dict[str, Any]) -> Any:
    given["num_sms"] = _sms(given["num_sms"])
    return kernel.call(*given.values())


@operator(composite=True, dispatch=_contiguous)
def fp8_grouped_contiguous(
    q: Tensor,
    scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    m_indices: Tensor,
    num_sms: int = -1,
) -> Tensor:
    """bfloat16 [M, N] of q [M, K] and of weight [G, N, K] the group that m_indices int32 [M] names.

    Each 128 rows have one group, which their first row names, and are padded with -1 at their end.
    Rows of padding become anything.
    """
    return q.new_empty((q.shape[0], weight.shape[1]), dtype=torch.bfloat16)


def _ragged(kernel: Operator, given: dict[str, Any]) -> Any:
    given["num_sms"] = _sms(given["num_sms"])
    given["swap_ab"] = _masked_swaps(given["expected_m"], given["q"].shape[0], given["swap_ab"])
    return kernel.call(*given.values())


@operator(composite=True, dispatch=_ragged)
def fp8_grouped_ragged(
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
    """bfloat16 [M, N] of q [M, K]: of weight [G, N, K] group g takes counts[g] rows from starts[g]
    on, which are never read on the host. Other rows become anything.

    starts int32 [G + 1], of which the last is not used, are multiples of 4; counts int32 [G].
    scatter_fp8_ragged makes all of it. `expected_m` as in fp8_grouped_masked.
    """
    return q.new_empty((q.shape[0], weight.shape[1]), dtype=torch.bfloat16)


def _deep_gemm(kernel: Operator, given: dict[str, Any]) -> Any:
    lhs, num_sms, swap_ab = given["lhs"], given["user_deep_gemm_num_sm"], given["swap_ab"]
    library = _library_for(lhs, given["rhs_data"], num_sms, swap_ab)
    if library is not None:
        return library(*fp8_quantize(lhs), given["rhs_data"], given["rhs_scale"])
    given["user_deep_gemm_num_sm"] = _sms(num_sms)
    given["swap_ab"] = _linear_swaps(lhs, swap_ab)
    return kernel.call(*given.values())


@operator(composite=True, dispatch=_deep_gemm)
def deep_gemm_fp8(
    lhs: Tensor,
    rhs_data: Tensor,
    rhs_scale: Tensor,
    user_deep_gemm_num_sm: int = -1,
    swap_ab: bool | None = None,
) -> Tensor:
    """fp8_linear of fp8_quantize(lhs) in one call: bfloat16 [M, N].

    lhs [M, K] of a float dtype, rhs_data e4m3 [N, K], rhs_scale float32 [ceil(N / 128), K / 128].
    """
    return lhs.new_empty((lhs.shape[0], rhs_data.shape[0]), dtype=torch.bfloat16)


def _deep_gemm_masked(kernel: Operator, given: dict[str, Any]) -> None:
    most = given["lhs"].shape[-2]
    given["user_deep_gemm_num_sm"] = _sms(given["user_deep_gemm_num_sm"])
    given["swap_ab"] = _masked_swaps(given["expected_m"], most, given["swap_ab"])
    kernel.call(*given.values())


@operator(composite=True, dispatch=_deep_gemm_masked)
def deep_gemm_grouped_fp8_masked(
    lhs: Tensor,
    rhs_data: Tensor,
    rhs_scale: Tensor,
    output: MutableTensor,
    masked_m: Tensor,
    expected_m: int,
    user_deep_gemm_num_sm: int = -1,
    lhs_scale: Tensor | None = None,
    swap_ab: bool | None = None,
) -> None:
    """fp8_grouped_masked of lhs into output [G, Mmax, N], whose other rows stay as they are.

    lhs [G, Mmax, K] is e4m3 with lhs_scale, or of a float dtype and quantised here.
    """
