# SPDX-License-Identifier: Apache-2.0
"""What is refused of a prompt's embeddings and positions, and how many embeddings are kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rtp_llm.engine.admission import check_request
from rtp_llm.engine.limits import EngineLimits
from rtp_llm.engine.messages import INDEX_BITS, AddRequest, RequestError
from rtp_llm.engine.prompt_inputs import EmbeddingBudget, scheduler_inputs
from rtp_llm.request.mm_features import MultiModalFeature, PlaceholderRange
from rtp_llm.request.sampling_params import SamplingParams

LIMITS = EngineLimits(32, 100, 4, 4, (), embedding_width=2, mrope=True, max_mm_bytes=64)
PLAIN = EngineLimits(32, 100, 4, 4, ())


def image(offset: int, length: int, **changes: Any) -> MultiModalFeature:
    fields = {"data": bytes(8 * length), "identifier": "a", "modality": "image", **changes}
    return MultiModalFeature(mm_position=PlaceholderRange(offset=offset, length=length), **fields)


def request(number: int = 1, n: int = 1, **fields: Any) -> AddRequest:
    params = SamplingParams(max_tokens=4, n=n)
    return AddRequest(request_id=number, prompt_token_ids=[5] * 8, params=params, **fields)


def positions(*last: int) -> bytes:
    """Of eight tokens, the last one of which is at ``last``."""
    found = np.tile(np.arange(8, dtype=np.int32), (3, 1))
    found[:, 7] = last
    return found.tobytes()


@pytest.mark.parametrize(
    "fields",
    [
        {"mm_features": [image(0, 3), image(3, 5)]},
        {"mm_features": [image(7, 1, data=bytes(4), dtype="bfloat16")]},
        {"mrope_positions": positions(7, 9, 27), "mrope_position_delta": 20},
        {"mrope_positions": positions(3, 3, 3), "mrope_position_delta": -8},
    ],
)
def test_what_suits_is_taken(fields: dict[str, Any]) -> None:
    check_request(request(**fields), LIMITS)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mm_features": [image(0, 0)]}, "0 tokens from 0"),
        ({"mm_features": [image(-1, 2)]}, "2 tokens from -1"),
        ({"mm_features": [image(0, 3), image(2, 3)]}, r"mm_features\[1\]: 3 tokens from 2"),
        ({"mm_features": [image(6, 3)]}, "it ends at 9, the prompt at 8"),
        ({"mm_features": [image(0, 3, data=b"four")]}, "4 bytes, not the 24 of"),
        ({"mm_features": [image(0, 3, identifier="")]}, "no identifier"),
        ({"mm_features": [image(0, 8), image(8, 1)]}, "it ends at 9"),
        ({"mrope_positions": b"four"}, "4 bytes, not the 96"),
        ({"mrope_position_delta": 1}, "0 bytes, not the 96"),
        ({"mrope_positions": positions(7, -1, 7)}, "go from -1"),
        ({"mrope_positions": positions(7, 7, 32)}, "to 32, outside the 32"),
        ({"mrope_positions": positions(7, 7, 7), "mrope_position_delta": 21}, "to 32, outside"),
        ({"mrope_positions": positions(7, 7, 7), "mrope_position_delta": -9}, "go from -1"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        check_request(request(**fields), LIMITS)
    assert caught.value.kind == "invalid"


def test_more_embeddings_than_all_requests_may_have() -> None:
    limits = EngineLimits(32, 100, 4, 4, (), embedding_width=2, max_mm_bytes=63)
    with pytest.raises(RequestError, match="64 bytes, more than the 63"):
        check_request(request(mm_features=[image(0, 8)]), limits)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mm_features": [image(0, 3)]}, "the model takes token ids alone"),
        ({"mrope_positions": positions(7, 7, 7)}, "the model's positions have one axis"),
    ],
)
def test_a_model_of_text_takes_text(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        check_request(request(**fields), PLAIN)


def test_what_the_scheduler_gets() -> None:
    assert scheduler_inputs(request()) == {}
    features = [image(1, 2, modality="video", identifier="b")]
    found = scheduler_inputs(
        request(mm_features=features, mrope_positions=positions(4, 5, 6), mrope_position_delta=-2)
    )
    assert found["spans"] == [(1, 2, b"video\0b")]
    assert found["mrope_position_delta"] == -2
    assert found["mrope_offsets"].tolist() == [[0, 0, 0]] * 7 + [[-3, -2, -1]]
    assert found["mrope_offsets"].dtype == np.int32 and found["mrope_offsets"].flags.c_contiguous


def test_embeddings_are_kept_until_the_last_sequence_ends() -> None:
    budget = EmbeddingBudget(64)
    first, second = (1 << INDEX_BITS, 2 << INDEX_BITS)
    budget.take(request(1, n=2, mm_features=[image(0, 5)]))  # 40 bytes
    budget.take(request(2))
    later = request(3, mm_features=[image(0, 4)])
    with pytest.raises(RequestError, match="hold 40 of 64") as caught:
        budget.take(later)
    assert caught.value.kind == "queue_full"
    budget.give_back([first, second])
    budget.give_back([first])
    with pytest.raises(RequestError, match="hold 40 of 64"):
        budget.take(later)
    budget.give_back([first + 1])
    budget.take(later)
    budget.give_back_request(3)
    budget.take(request(4, mm_features=[image(0, 8)]))
