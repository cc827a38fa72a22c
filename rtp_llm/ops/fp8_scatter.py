"""Tokens as block-scaled FP8 at the places of their experts, as fp8_grouped_masked takes them."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.registry import operator

_SCATTER_FP8 = operator("scatter_fp8")


def scatter_fp8(
    x: Tensor, ids: Tensor, places: Tensor, offsets: Tensor, ragged: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """fp8_quantize(x), each token's row in a place for each of its experts.

    x [T, K] of a float dtype, contiguous; ids int32 [T, k], an expert at most once for a token;
    places int32 [T, k] and offsets int32 [E + 1] as sort_by_expert(ids, E) gives them. Returns (q
    e4m3 [E, T, K rounded up to 128], scales float32 [E, K / 128, T rounded up to 4], rows int32
    [T, k], counts int32 [E]): expert e has counts[e] rows in q[e]; rows says where each entry lies
    in q's first two axes together, -1 for ids outside [0, E). Other rows are anything, columns from
    K on zeros. With `ragged`, as fp8_grouped_ragged takes them: q [T k, ...] and scales [..., T k
    rounded up to 4], the experts' rows one after the other as `places` has them. RuntimeError on a
    mismatch.
    """
    return _SCATTER_FP8.call(x, ids, places, offsets, ragged)  # type: ignore[no-any-return]
