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
    """Whether a library may multiply: libraries support neither num_sms nor swap_ab."""
    return swap_ab is None and _sms(num_sms) == fp8_gemm_choice.ALL_SMS


def _library_for(
    x: Tensor, weight: Tensor, num_sms: int, swap_ab: bool | None
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | None:
    """The plain product of the library that is faster at these sizes, or None."""
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
    """q [M, K] times weight [N, K] transposed: bfloat16 [M, N].

    swap_ab is chosen by a table unless given. cuBLASLt or DeepGEMM multiply where they are faster.
    RuntimeError on a mismatch.
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
    """q [G, Mmax, K] times weight [G, N, K] transposed, group by group: bfloat16 [G, Mmax, N].

    Only the first masked_m[g] rows of group g are multiplied; the others are undefined. The counts
    are never read on the host.

    scales [G, K / 128, Mmax rounded up to 4], weight_scales [G, ceil(N / 128), K / 128], masked_m
    int32 [G]. `expected_m` is the typical number of rows in a group: it only affects speed, not the
    result; 0 means unknown. RuntimeError on a mismatch.
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
    """q [M, K] times the group of weight [G, N, K] that m_indices int32 [M] names: bfloat16 [M, N].

    Each 128 rows belong to one group, named by the first of them, and are padded at their end with
    -1. Results of padding rows are undefined. RuntimeError on a mismatch.
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
    """q [M, K] times weight [G, N, K]: counts[g] rows from starts[g] on use group g; [M, N].

    Returns bfloat16 [M, N]; weights are transposed. The counts are never read on the host. Results
    of other rows are undefined.

    starts int32 [G + 1] (the last one is not used) are multiples of 4; counts int32 [G].
    scatter_fp8_ragged makes all operands. `expected_m` as in fp8_grouped_masked. RuntimeError on a
    mismatch.
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
    """fp8_grouped_masked of lhs into output [G, Mmax, N]; masked rows of output are not modified.

    lhs [G, Mmax, K] is e4m3 with lhs_scale, or of a float dtype and quantised here. RuntimeError on
    a mismatch.
    """
