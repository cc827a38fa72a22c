# SPDX-License-Identifier: Apache-2.0
"""Every kind of cache that travels gives what one engine gives: heads, MLA, 8-bit floats."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from rtp_llm.attention import AttentionConfig, factory
from rtp_llm.attention.batch import ForwardBatch
from rtp_llm.attention.paged import PagedAttentionBackend
from rtp_llm.attention.rotation import rotate_in_one_pass
from rtp_llm.device import Support
from rtp_llm.device.cpu import CpuDevice
from rtp_llm.testing.disagg.workers import Pair, prompt
from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import save_model

BLOCK = 4
SIZES: dict[str, Any] = {
    "seq_size_per_block": BLOCK,
    "max_batch_tokens_size": 24,
    "max_running_requests": 8,
    "kv_cache_mem_mb": 1,
}
# One layer sees everything, two a window: two groups of blocks.
HYBRID = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
# How many planes the cache of each kind has, and the settings it needs in addition to its name.
KINDS: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "llama": (2, {"num_key_value_heads": 4}, {}),  # as many heads for keys as for queries
    "deepseek_v2": (1, {}, {}),  # MLA, and a mixture
    "deepseek_v3": (1, {}, {}),
    "glm_moe_dsa": (1, {}, {}),  # some layers have a second cache, for an indexer
    "gemma4": (2, {}, {}),  # half of the layers keep nothing
    "qwen3_moe": (2, {}, {}),
    "mixtral": (2, {"sliding_window": 24}, {}),
    "qwen2": (2, HYBRID, {}),
    "qwen3": (2, {}, {"kv_cache_dtype": "fp8_e4m3"}),
}


class EightBits(PagedAttentionBackend):
    """Attention over a cache of 8-bit floats, which no CPU kernel reads: dequantised every time."""

    name: ClassVar[str] = "eight bits"

    @classmethod
    def supports(cls, config: AttentionConfig) -> Support:
        return Support.yes()

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self._rotate = rotate_in_one_pass  # its kernel rounds what it stores

    def forward(
        self,
        q: Tensor,
        layer: int,
        window: int,
        batch: ForwardBatch,
        sinks: Tensor | None = None,
    ) -> Tensor:
        def attend(q: Tensor, cache: Tensor, *numbers: Any, **options: Any) -> Tensor:
            return self.kernel()(q, cache.to(q.dtype), *numbers, **options)

        return self._call(attend, q, layer, window, batch, sinks)


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patched:
        if "kv_cache_dtype" in KINDS[request.param][2]:
            refused = {**CpuDevice.refused}
            del refused["quantized_kv_cache"]
            patched.setattr(CpuDevice, "refused", refused)
            patched.setattr(factory, "_BACKENDS", ("eight bits",))
            patched.setattr(factory, "_load", lambda name: EightBits)
        yield request.param


@pytest.fixture(scope="module")
def folder(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp(kind)
    save_model(made, kind, seed=3, **KINDS[kind][1])
    with each_token_alone():
        yield made


@pytest.fixture(scope="module")
def pair(kind: str, folder: Path) -> Iterator[Pair]:
    made = Pair(folder, **SIZES, **KINDS[kind][2])
    yield made
    made.settle()
    made.close()


@pytest.fixture(scope="module")
def fused(kind: str, folder: Path) -> TinyEngine:
    return TinyEngine(folder, **SIZES, **KINDS[kind][2])


def test_the_cache_is_of_the_kind_that_is_meant(kind: str, pair: Pair) -> None:
    for worker in (pair.prefill, pair.decode):
        cache = worker.base.worker.runner.cache
        assert len(cache.groups) == (2 if kind in ("gemma4", "glm_moe_dsa", "qwen2") else 1)
        layer = cache.layers[0]
        assert len(layer) == KINDS[kind][0]
        eight = "kv_cache_dtype" in KINDS[kind][2]
        assert layer.dtype == (torch.float8_e4m3fn if eight else torch.float32)


@pytest.mark.parametrize("length", [1, 4, 25, 61])
def test_greedy_text_is_that_of_one_engine(pair: Pair, fused: TinyEngine, length: int) -> None:
    tokens = prompt(length, seed=length)
    before = pair.decode.transfers().get("delivered", 0)
    assert pair.tokens(tokens) == fused.tokens(tokens)
    assert pair.decode.transfers()["delivered"] == before + 1
    pair.settle()


def test_many_at_once_with_prefixes_on_either_side(pair: Pair, fused: TinyEngine) -> None:
    start = prompt(26, seed=9)
    prompts = [[*start, *prompt(1 + 5 * number, seed=number)] for number in range(6)]
    sampled = {"temperature": 1.2, "top_p": 0.9, "logprobs": 2}
    for _ in range(2):  # the second time both sides have what they need
        requests = [
            pair.decode.add(tokens, seed=seed, **sampled) for seed, tokens in enumerate(prompts)
        ]
        pair.until(lambda asked=requests: pair.finished(*asked))  # type: ignore[misc]
        for seed, (request, tokens) in enumerate(zip(requests, prompts, strict=True)):
            alone = fused.add(tokens, seed=seed, **sampled)
            fused.run()
            found, expected = pair.decode.outcomes[request], fused.outcomes[alone, 0]
            assert found.tokens == expected.tokens
            # To the last bit: no close call can be decided otherwise.
            assert found.logprobs == expected.logprobs
    assert not pair.decode.failures()
    pair.settle()


def content(rows: list[list[int]]) -> dict[tuple[int, ...], bytes]:
    """The bytes of blocks by plane, position and key."""
    found = {}
    for plane, position, key, address, count, size, _ in rows:
        assert count == 1
        found[plane, position, key] = ctypes.string_at(address, size)
    return found


def test_what_arrives_is_what_was_computed_byte_by_byte(pair: Pair) -> None:
    sent: dict[int, list[list[int]]] = {}
    send_buffer: Any = pair.prefill.connector._sender.writer._send_buffer
    send, layout = send_buffer.send, send_buffer._layout

    def watched(layer: int, prompts: Any) -> None:
        for each in prompts:
            rows = layout.rows(layer, each.parts[layout.layer_group[layer]])
            sent.setdefault(layer, []).extend(rows.tolist())
        send(layer, prompts)

    decode: Any = pair.decode.connector
    deliver, compared = decode._deliver, []

    def looked_at(awaited: Any, first: Any) -> Any:
        # Neither side has released a block yet.
        for layer, rows in decode._own.loads[awaited.name].buffer.rows:
            assert content(rows.tolist()) == content(sent[layer])
            compared.append(layer)
        return deliver(awaited, first)

    send_buffer.send, decode._deliver = watched, looked_at
    pair.tokens(prompt(47, seed=70))
    send_buffer.send, decode._deliver = send, deliver
    assert compared == list(layout.layers)
