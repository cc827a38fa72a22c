# SPDX-License-Identifier: Apache-2.0
"""Which rows of which sequences a step takes."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rtp_llm.request.mm_features import FeatureDtype, MultiModalFeature, PlaceholderRange
from rtp_llm.worker.inputs.embedding_store import EmbeddingStore
from rtp_llm.worker.new_sequences import NewSequences

WIDTH = 2


def feature(offset: int, first: int, count: int, dtype: FeatureDtype = "float32") -> Any:
    """Rows (first, first), (first + 1, first + 1), ..."""
    rows = torch.arange(first, first + count, dtype=getattr(torch, dtype))[:, None]
    data = rows.expand(-1, WIDTH).contiguous().view(torch.uint8).numpy().tobytes()
    place = PlaceholderRange(offset=offset, length=count)
    return MultiModalFeature(
        mm_position=place, modality="image", identifier="a", data=data, dtype=dtype
    )


def new(ids: Sequence[int], *features: Any) -> Any:
    rest: Any = None
    prompt = np.zeros(20, np.int32)
    return NewSequences(ids, ids, ids, prompt, rest, (), mm_features=features)


def plan(*chunks: tuple[int, int, int]) -> Any:
    """Of (sequence, first token, tokens)."""
    positions = [np.arange(first, first + count) for _, first, count in chunks]
    return SimpleNamespace(
        seq_ids=np.array([sequence for sequence, _, _ in chunks], np.int64),
        cu_seqlens_q=np.cumsum([0, *(count for _, _, count in chunks)], dtype=np.int32),
        positions=np.concatenate(positions).astype(np.int32),
    )


def taken(store: EmbeddingStore, *chunks: tuple[int, int, int]) -> dict[int, int]:
    """Tokens of the step, and the first number of what replaces them."""
    found = store.rows_of(plan(*chunks))
    if found is None:
        return {}
    rows = torch.from_numpy(found.raw).view(torch.float32)
    return dict(zip(found.places.tolist(), rows[:, 0].int().tolist(), strict=True))


def test_any_part_of_a_prompt_takes_its_rows() -> None:
    store = EmbeddingStore(WIDTH, torch.float32)
    assert taken(store, (1, 0, 9)) == {}
    store.add(new([5], feature(2, 10, 4), feature(8, 20, 3)))
    store.add(new([3, 4], feature(1, 50, 2)))
    store.add(new([6]))
    assert taken(store, (5, 0, 20)) == {2: 10, 3: 11, 4: 12, 5: 13, 8: 20, 9: 21, 10: 22}
    assert taken(store, (5, 4, 5)) == {0: 12, 1: 13, 4: 20}
    assert taken(store, (5, 6, 2)) == {}
    assert taken(store, (5, 11, 4)) == {}, "after them"
    assert taken(store, (6, 0, 2), (9, 3, 1), (5, 10, 1), (4, 0, 3)) == {3: 22, 5: 50, 6: 51}
    store.end([5, 4, 9])
    assert taken(store, (5, 0, 20)) == {}
    assert taken(store, (3, 2, 1)) == {0: 51}, "shared with a sequence that has ended"
    store.end([3])
    assert store.rows_of(plan((3, 2, 1))) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("given", ["bfloat16", "float16", "float32"])
def test_rows_have_the_type_of_the_model(given: FeatureDtype, dtype: torch.dtype) -> None:
    store = EmbeddingStore(WIDTH, dtype)
    store.add(new([1], feature(0, 3, 2, given)))
    found = store.rows_of(plan((1, 0, 2)))
    assert found is not None
    rows = torch.from_numpy(found.raw).view(dtype)
    assert rows.tolist() == [[3.0, 3.0], [4.0, 4.0]]
