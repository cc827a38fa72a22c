# SPDX-License-Identifier: Apache-2.0
"""Tests of which sizes are captured."""

from __future__ import annotations

import pytest

from rtp_llm.worker.inputs.graph_sizes import (
    GraphSize,
    decode_sizes,
    encoder_sizes,
    graph_sizes,
    launch_work,
    prompt_sizes,
    verify_sizes,
)

SMALL = 10**9  # bytes of weights


def test_decode_sizes_end_with_the_largest():
    def tokens(most):
        return [size.tokens for size in decode_sizes(most)]

    assert tokens(1) == [1]
    assert tokens(20) == [1, 2, 4, 8, 16, 20]
    assert tokens(64) == [1, 2, 4, 8, 16, 24, 32, 48, 64]
    assert tokens(256)[-3:] == [224, 240, 256]
    assert all(size == GraphSize(size.tokens, size.tokens, 1) for size in decode_sizes(256))


def test_prompt_sizes_keep_to_the_budget():
    sizes = prompt_sizes(8192, 256)
    assert sizes[0] == GraphSize(16, 4, 16)
    assert sizes[-1] == GraphSize(1024, 64, 1024)
    assert all(size.sequences <= size.tokens for size in sizes)
    assert prompt_sizes(32, 1) == [GraphSize(16, 1, 16), GraphSize(32, 1, 32)]
    assert prompt_sizes(15, 8) == []


def test_the_largest_decode_size_comes_first_and_prompts_last():
    sizes = graph_sizes(max_batch_tokens=8192, max_running=20, weight_bytes=SMALL)
    assert [size.tokens for size in sizes[:6]] == [20, 1, 2, 4, 8, 16]
    assert sizes[6:] == prompt_sizes(8192, 20)
    assert graph_sizes(max_batch_tokens=4, max_running=20, weight_bytes=SMALL)[0] == GraphSize(
        4, 4, 1
    )


@pytest.mark.parametrize(
    ("weight_bytes", "most"),
    [(0, 1024), (SMALL, 1024), (8 * SMALL, 384), (16 * SMALL, 192), (140 * SMALL, 64)],
)
def test_large_models_compute_for_longer_than_the_host_launches(weight_bytes, most):
    assert max(size.longest for size in graph_sizes(8192, 8, weight_bytes)) == most


@pytest.mark.parametrize(
    ("layers", "billions", "several_ranks", "most"),
    [(36, 16, False, 192), (36, 8, True, 512), (80, 141, False, 64), (80, 70.5, True, 128)],
)
def test_many_layers_take_the_host_longer_and_several_hosts_longest(
    layers, billions, several_ranks, most
):
    work = launch_work(layers, several_ranks)
    sizes = graph_sizes(8192, 8, int(billions * SMALL), max_work=work)
    assert max(size.longest for size in sizes) == most


def test_steps_that_verify_drafts_have_sizes_by_batch():
    assert verify_sizes(4, most=300, max_sequences=20) == [
        GraphSize(4 * count, count, 4) for count in (1, 2, 4, 8, 16, 20)
    ]
    assert verify_sizes(4, most=50, max_sequences=20)[-1] == GraphSize(48, 12, 4)
    assert verify_sizes(4, most=3, max_sequences=20) == []
    sizes = graph_sizes(8192, 20, 8 * SMALL, max_draft_tokens=3)
    plain = graph_sizes(8192, 20, 8 * SMALL)
    # Of one sequence right after its decode size, which is captured at the start.
    assert sizes[:4] == [*plain[:2], GraphSize(4, 1, 4), plain[2]]
    assert sorted(sizes) == sorted({*plain, *verify_sizes(4, 500, 20)})


def test_where_a_token_goes_to_few_experts_larger_batches_verify():
    """40 billion parameters, of which 2 compute a token: 64 sequences with three drafts."""
    verified = GraphSize(256, 64, 4)
    sizes = graph_sizes(8192, 64, 80 * SMALL, 3, token_bytes=4 * SMALL)
    all_read = graph_sizes(8192, 64, 80 * SMALL, 3)
    assert verified in sizes and verified not in all_read
    assert set(sizes) - set(all_read) == set(verify_sizes(4, 256, 64)) - set(all_read)
    # Of a dense model as many bytes compute a token as are read.
    assert graph_sizes(8192, 64, 16 * SMALL, 3, 16 * SMALL) == graph_sizes(8192, 64, 16 * SMALL, 3)


@pytest.mark.parametrize("draft_tokens", [1, 3, 7, 15, 80])
@pytest.mark.parametrize(("running", "weights"), [(1, 0), (20, SMALL), (1024, SMALL), (1024, 0)])
def test_there_are_few_sizes_and_none_twice(draft_tokens, running, weights):
    sizes = graph_sizes(8192, running, weights, draft_tokens)
    assert len(set(sizes)) == len(sizes) <= 2 * len(decode_sizes(running)) + 20


def test_sizes_of_an_encoder_hold_whole_prompts_and_the_largest_comes_first():
    sizes = encoder_sizes(16384, 256, SMALL, max_model_len=512, max_work=4e12)
    assert sizes[:3] == [GraphSize(3072, many, 512) for many in (256, 64, 4)]
    assert min(each.tokens for each in sizes if each.sequences > 64) == 1024
    assert sizes[-2:] == [GraphSize(16, 16, 16), GraphSize(16, 4, 16)]
    assert not any(size.longest == 1 for size in sizes), "no step decodes"
    assert encoder_sizes(600, 1, 1, max_model_len=600, max_work=4e12)[0] == GraphSize(512, 1, 512)
