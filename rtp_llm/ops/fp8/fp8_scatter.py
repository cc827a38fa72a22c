"""Tokens as block-scaled FP8 at the places of their experts, as grouped products take them."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.registry import operator

_SCATTER_FP8 = operator("scatter_fp8")
_SCATTER_FP8_RAGGED = operator("scatter_fp8_ragged")


def scatter_fp8(
    x: Tensor, ids: Tensor, places: Tensor, offsets: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """fp8_quantize(x), each token's row in a place for each of its experts.

    x [T, K] of a float dtype, contiguous; ids int32 [T, k], an expert at most once for a token;
    places int32 [T, k] and offsets int32 [E + 1] as sort_by_expert(ids, E) gives them. Returns (q
    e4m3 [E, T, K rounded up to 128], scales float32 [E, K / 128, T rounded up to 4], rows int32
    [T, k], counts int32 [E]): expert e has counts[e] rows in q[e]; rows says where each entry lies
    in q's first two axes together, -1 for ids outside [0, E). Other rows are anything, columns from
    K on zeros. RuntimeError on a mismatch.
    """
    return _SCATTER_FP8.call(x, ids, places, offsets)  # type: ignore[no-any-return]


def scatter_fp8_ragged(
    x: Tensor, ids: Tensor, places: Tensor, offsets: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """scatter_fp8 with the experts' rows one after the other, in a place for all of them.

    Returns (q e4m3 [M, K rounded up to 128], scales float32 [K / 128, M], rows int32 [T, k] of q,
    starts int32 [E + 1], counts int32 [E]) with M = T k + 3 E rounded down to 4: expert e has
    counts[e] rows from starts[e] on, a multiple of 4; starts[E] is behind all of them.
    """
    return _SCATTER_FP8_RAGGED.call(x, ids, places, offsets)  # type: ignore[no-any-return]
