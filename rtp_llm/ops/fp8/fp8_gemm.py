"""GEMMs of block-scaled FP8: x [M, K] times weight [N, K] transposed, in four forms.

Activations come from rtp_llm.ops.fp8.fp8_activation: q e4m3 with a float32 scale for each 128
channels of a row, scales column-major [K / 128, M rounded up to 4]. Weights are e4m3 with a scale
for each 128x128 tile. Sums are float32, results bfloat16. N is a multiple of 64, K of 128.
RuntimeError on a mismatch. `num_sms` limits the multiprocessors; -1 leaves it to
rtp_llm.ops.fp8.fp8_gemm_choice, which also says where swap-AB is used.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from rtp_llm.ops.fp8 import fp8_deep_gemm, fp8_gemm_choice, fp8_library
from rtp_llm.ops.fp8.fp8_activation import fp8_quantize
from rtp_llm.ops.registry import operator

_FP8_LINEAR = operator("fp8_linear")
_FP8_GROUPED_MASKED = operator("fp8_grouped_masked")
_FP8_GROUPED_CONTIGUOUS = operator("fp8_grouped_contiguous")
_FP8_GROUPED_RAGGED = operator("fp8_grouped_ragged")
_DEEP_GEMM_FP8 = operator("deep_gemm_fp8")
_DEEP_GEMM_GROUPED_FP8_MASKED = operator("deep_gemm_grouped_fp8_masked")


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
    library = _library_for(q, weight, num_sms, swap_ab)
    if library is not None:
        return library(q, scales, weight, weight_scales)
    swaps = _linear_swaps(q, swap_ab)
    product = _FP8_LINEAR.call(q, scales, weight, weight_scales, _sms(num_sms), swaps)
    return product  # type: ignore[no-any-return]


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
    left_open = q.dim() == weight.dim() == 3 and _left_open(num_sms, swap_ab)
    if left_open and fp8_deep_gemm.takes_masked(q, weight, expected_m):
        return fp8_deep_gemm.masked(q, scales, weight, weight_scales, masked_m, expected_m)
    swaps = _masked_swaps(expected_m, q.shape[-2], swap_ab)
    product = _FP8_GROUPED_MASKED.call(
        q, scales, weight, weight_scales, masked_m, expected_m, _sms(num_sms), swaps
    )
    return product  # type: ignore[no-any-return]


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
    product = _FP8_GROUPED_CONTIGUOUS.call(
        q, scales, weight, weight_scales, m_indices, _sms(num_sms)
    )
    return product  # type: ignore[no-any-return]


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
    swaps = _masked_swaps(expected_m, q.shape[0], swap_ab)
    product = _FP8_GROUPED_RAGGED.call(
        q, scales, weight, weight_scales, starts, counts, expected_m, _sms(num_sms), swaps
    )
    return product  # type: ignore[no-any-return]


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
    library = _library_for(lhs, rhs_data, user_deep_gemm_num_sm, swap_ab)
    if library is not None:
        return library(*fp8_quantize(lhs), rhs_data, rhs_scale)
    swaps = _linear_swaps(lhs, swap_ab)
    product = _DEEP_GEMM_FP8.call(lhs, rhs_data, rhs_scale, _sms(user_deep_gemm_num_sm), swaps)
    return product  # type: ignore[no-any-return]


def deep_gemm_grouped_fp8_masked(
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
    """fp8_grouped_masked of lhs into output [G, Mmax, N], whose other rows stay as they are.

    lhs [G, Mmax, K] is e4m3 with lhs_scale, or of a float dtype and quantised here.
    """
    swaps = _masked_swaps(expected_m, lhs.shape[-2], swap_ab)
    sms = _sms(user_deep_gemm_num_sm)
    _DEEP_GEMM_GROUPED_FP8_MASKED.call(
        lhs, rhs_data, rhs_scale, output, masked_m, expected_m, sms, lhs_scale, swaps
    )
