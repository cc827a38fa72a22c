# SPDX-License-Identifier: Apache-2.0
"""Tests of columns: what goes in comes out, row by row."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from rtp_llm.engine.columns import step_columns
from rtp_llm.engine.deltas import decode_prompt_logprobs, decode_step, merge_deltas
from rtp_llm.engine.messages import (
    FINISH_BANNED,
    FINISH_EOS,
    FINISH_LENGTH,
    FINISH_NAN,
    FINISH_NONE,
    FINISH_STOP_TOKEN,
    INDEX_BITS,
    MAX_REQUEST_ID,
    FromEngine,
    PromptLogprobs,
    SequenceDelta,
    TokenLogprob,
)
from rtp_llm.worker.heads.sample_handle import Sampled
from rtp_llm.worker.worker import StepOutputs


def result(*, tokens: list[list[int]], finish: list[int]) -> SimpleNamespace:
    count = len(tokens)
    requests = np.array([7, 7, MAX_REQUEST_ID, 1][:count], np.int64)
    indexes = np.array([0, 127, 3, 0][:count], np.int64)
    return SimpleNamespace(
        ids=requests << INDEX_BITS | indexes,
        tokens=np.array(tokens, np.int32),
        num_tokens=np.array([sum(t >= 0 for t in row) for row in tokens], np.int32),
        finish=np.array(finish, np.uint8),
        cached_tokens=np.arange(count, dtype=np.int32),
        queue_seconds=np.arange(count, dtype=np.float32) / 4,
    )


def through_the_wire(result, logprobs=None):
    sampled = Sampled(result.tokens, 0, logprobs)
    output = step_columns(result, StepOutputs(9, 99, sampled), 0.5)
    return msgspec.msgpack.decode(msgspec.msgpack.encode(output), type=FromEngine)


def test_every_row_becomes_its_delta():
    finish = [FINISH_NONE, FINISH_EOS, FINISH_STOP_TOKEN, FINISH_LENGTH]
    output = through_the_wire(result(tokens=[[5, -1], [6, 2], [9, -1], [8, 8]], finish=finish))
    assert (output.num_sequences, output.batch_tokens, output.num_rows) == (9, 99, 4)
    assert list(decode_step(output)) == [
        (7, SequenceDelta(index=0, token_ids=[5], cached_tokens=0, queue_seconds=0.0)),
        (
            7,
            SequenceDelta(
                index=127,
                token_ids=[6, 2],
                finish_reason="stop",
                stop_token_id=2,
                cached_tokens=1,
                queue_seconds=0.25,
            ),
        ),
        (
            MAX_REQUEST_ID,
            SequenceDelta(
                index=3,
                token_ids=[9],
                finish_reason="stop",
                stop_token_id=9,
                cached_tokens=2,
                queue_seconds=0.5,
            ),
        ),
        (
            1,
            SequenceDelta(
                index=0,
                token_ids=[8, 8],
                finish_reason="length",
                cached_tokens=3,
                queue_seconds=0.75,
            ),
        ),
    ]


def test_errors_follow_the_tokens_that_came():
    finish = [FINISH_NAN, FINISH_BANNED, FINISH_NONE]
    broken = result(tokens=[[5, -1], [-1, -1], [-1, -1]], finish=finish)
    first, second = decode_step(through_the_wire(broken))
    error = {"finish_reason": "error", "error": "model_produced_nan"}
    assert first == (7, SequenceDelta(index=0, token_ids=[5], cached_tokens=0, **error))
    error["error"] = "no_allowed_tokens"
    request_id, delta = second
    assert (request_id, delta.index, delta.token_ids) == (7, 127, [])
    assert (delta.finish_reason, delta.error) == ("error", "no_allowed_tokens")
    merged = merge_deltas(SequenceDelta(index=127, token_ids=[4]), second[1])
    assert merged == SequenceDelta(index=127, token_ids=[4], **error)


def test_rows_without_tokens_say_nothing():
    ended_before = result(tokens=[[5], [-1]], finish=[FINISH_NONE, FINISH_NONE])
    assert [delta.token_ids for _, delta in decode_step(through_the_wire(ended_before))] == [[5]]


def test_a_step_without_rows_has_no_deltas():
    empty = result(tokens=[], finish=[])
    empty.tokens = np.empty((0, 1), np.int32)
    assert list(decode_step(through_the_wire(empty))) == []


def test_logprobs_reach_the_rows_that_asked():
    logprobs = SimpleNamespace(
        places=np.array([0, 2], np.int32),
        wanted=np.array([0, 2], np.int32),
        chosen=np.array([-1.0, -2.0], np.float32),
        values=np.array([[-0.5, -1.0], [-0.25, -2.0]], np.float32),
        ids=np.array([[3, 5], [4, 9]], np.int32),
    )
    output = through_the_wire(
        result(tokens=[[5], [6], [9]], finish=[0, 0, 0]),
        logprobs,
    )
    deltas = [delta.logprobs for _, delta in decode_step(output)]
    assert deltas == [
        [TokenLogprob(5, -1.0, [])],
        None,
        [TokenLogprob(9, -2.0, [(4, -0.25), (9, -2.0)])],
    ]


def test_prompt_logprobs_keep_as_many_as_were_asked():
    message = PromptLogprobs(
        request_id=1,
        start=4,
        token_ids=np.array([8, 9], np.int32).tobytes(),
        chosen=np.array([-1, -2], np.float32).tobytes(),
        top_ids=np.array([[1, 2], [3, 4]], np.int32).tobytes(),
        top_values=np.array([[-1, -2], [-3, -4]], np.float32).tobytes(),
        ranks=np.array([5, 7], np.int32).tobytes(),
        width=2,
    )
    assert decode_prompt_logprobs(message, 1) == [
        TokenLogprob(8, -1.0, [(1, -1.0)], rank=5),
        TokenLogprob(9, -2.0, [(3, -3.0)], rank=7),
    ]
    for wanted in (-1, 2, 3, 2**31 - 1):
        tops = [entry.top for entry in decode_prompt_logprobs(message, wanted)]
        assert tops == [[(1, -1.0), (2, -2.0)], [(3, -3.0), (4, -4.0)]]


@pytest.mark.parametrize("with_logprobs", [False, True])
def test_two_deltas_become_one(with_logprobs):
    entries = [[TokenLogprob(t, -1.0, [])] if with_logprobs else None for t in (1, 2)]
    first = SequenceDelta(
        index=1, token_ids=[1], cached_tokens=16, logprobs=entries[0], prompt_logprobs=[None]
    )
    second = SequenceDelta(
        index=1,
        token_ids=[2],
        cached_tokens=16,
        finish_reason="stop",
        stop_token_id=2,
        logprobs=entries[1],
    )
    assert merge_deltas(first, second) == SequenceDelta(
        index=1,
        token_ids=[1, 2],
        cached_tokens=16,
        finish_reason="stop",
        stop_token_id=2,
        logprobs=[TokenLogprob(t, -1.0, []) for t in (1, 2)] if with_logprobs else None,
        prompt_logprobs=[None],
    )
