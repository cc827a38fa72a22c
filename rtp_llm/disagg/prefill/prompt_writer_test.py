# SPDX-License-Identifier: Apache-2.0
"""The forward path's half of the store: cycles, back-pressure, failures, and that nobody waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rtp_llm.disagg.metrics import TransferMetrics
from rtp_llm.disagg.prefill.prompt_sender import PromptSender
from rtp_llm.disagg.prefill.prompt_writer import PromptWriter
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import save_model
from rtp_llm.worker.cache.transfer.cache_keys import chain_keys
from rtp_llm.worker.cache.transfer.layout import CacheLayout
from rtp_llm.worker.cache.transfer.send_buffers import InPlaceSendBuffer
from rtp_llm.worker.cache.transfer.writer_settings import WriterSettings
from rtp_llm.worker.layer_hooks import LayerHooks

BLOCK = 4


class KeptStore:
    """A store that keeps copies of what it is offered."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.blocks: dict[tuple[str, int, int, int], tuple[int, bytes]] = {}
        self.times: list[tuple[int, float]] = []
        self.error: Exception | None = None
        self._lock = threading.Lock()

    def store(
        self, request: str, layer: int, blocks: NDArray[np.int64], owner: object | None = None
    ) -> bool:
        began = time.monotonic()
        if self.error is not None:
            raise self.error
        with self._lock:
            self.times.append((layer, began))
            for plane, position, key, address, rows, size, _ in blocks.tolist():
                assert rows == 1
                self.blocks[request, layer, plane, position] = (key, _read(address, size))
        self.arrived.set()
        return True


def _read(address: int, size: int) -> bytes:
    import ctypes

    return ctypes.string_at(address, size)


class Bench:
    """A tiny engine whose prompts go to a KeptStore."""

    def __init__(
        self, folder: Path, store: KeptStore, writer: WriterSettings | None = None, **settings: Any
    ) -> None:
        self.tiny = TinyEngine(folder, seq_size_per_block=BLOCK, **settings)
        engine = self.tiny.engine
        runner = self.tiny.built.worker.runner
        self.layout = CacheLayout(runner.cache)
        self.store = store
        send_buffer = InPlaceSendBuffer(store, self.layout, TransferMetrics())  # type: ignore[arg-type]
        self.writer = PromptWriter(
            self.layout,
            engine.kv_blocks,
            send_buffer,
            runner.device,
            writer or WriterSettings(),
        )
        self.tiny.built.worker.connect(PromptSender(self.writer, store))  # type: ignore[arg-type]

    def send(self, prompt: list[int], name: int = 1, **params: Any) -> int:
        """Compute a prompt and its first token, wait for its copies; the sequence's number."""
        sequence = self.begin(prompt, name, **params)
        self.tiny.run()
        self.writer.remove(sequence)
        self.writer.finish()
        return sequence

    def begin(self, prompt: list[int], name: int = 1, **params: Any) -> int:
        """Add a prompt for others; the sequence's number."""
        sequence = self.tiny.add(prompt, max_tokens=1, **params) << 7
        self.writer.add(sequence, name, np.array(prompt, np.int32), "")
        return sequence

    @property
    def held(self) -> int:
        """Sequences whose blocks are held."""
        return int(self.tiny.built.scheduler.stats()["held"])

    def expected(self, prompt: list[int], name: int) -> dict[Any, Any]:
        """What a store has to hold, read from the caches of a second, plain computation."""
        keys = chain_keys(np.array(prompt, np.int32), BLOCK)
        blocks = -(-len(prompt) // BLOCK)
        return {
            (str(name), layer, plane, position): keys[position]
            for layer in self.layout.layers
            for plane in (0, 1)
            for position in range(blocks)
        }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_model(folder, "qwen3")
    return folder


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(5, 90, length).tolist()


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 9, 31, 32, 33])
def test_every_block_is_offered_once_with_its_key(folder: Path, length: int) -> None:
    bench = Bench(folder, KeptStore(), max_batch_tokens_size=7, max_running_requests=4)
    sequence = bench.send(prompt(length), name=9)
    found = {place: key for place, (key, _) in bench.store.blocks.items()}
    assert found == bench.expected(prompt(length), 9)
    calls = len(bench.store.times)
    assert calls <= len(bench.layout.layers) * (-(-length // 7))
    assert bench.tiny.built.scheduler.stats()["held"] == 1
    bench.tiny.engine.kv_blocks.unpin(sequence)
    bench.tiny.assert_all_free()


def test_chunks_and_one_piece_store_the_same_bytes(folder: Path) -> None:
    whole, chunked = KeptStore(), KeptStore()
    tokens = prompt(38, seed=3)
    Bench(folder, whole, max_batch_tokens_size=64, max_running_requests=4).send(tokens)
    Bench(folder, chunked, max_batch_tokens_size=9, max_running_requests=4).send(tokens)
    assert whole.blocks.keys() == chunked.blocks.keys()
    for place, (key, content) in whole.blocks.items():
        assert chunked.blocks[place][0] == key
        if place[3] == 9:  # the last block, half of which nobody wrote
            continue
        one, other = (
            np.frombuffer(each, np.float32) for each in (content, chunked.blocks[place][1])
        )
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_cached_prefix_is_offered_too(folder: Path) -> None:
    bench = Bench(folder, KeptStore())
    tokens = prompt(21, seed=4)
    bench.tiny.tokens(tokens, max_tokens=2)
    bench.send(tokens, name=5)
    found = {place: key for place, (key, _) in bench.store.blocks.items()}
    assert found == bench.expected(tokens, 5)


def test_other_prompts_open_no_cycle(folder: Path) -> None:
    bench = Bench(folder, KeptStore())
    bench.tiny.tokens(prompt(12))
    assert not bench.store.times
    assert not bench.writer.in_progress


def around_layers(
    bench: Bench, before: Callable[[int], object], after: Callable[[int], object]
) -> None:
    """Calls ``before(layer)`` and ``after(layer)`` around the write of each layer of the steps to
    come, on the thread of the forward pass."""
    begin = bench.writer.begin

    @contextmanager
    def watched(context: Any) -> Iterator[Any]:
        with context as hooks:

            def save_kv_layer(layer: int) -> None:
                before(layer)
                hooks.save_kv_layer(layer)
                after(layer)

            yield LayerHooks(save_kv_layer=save_kv_layer)

    def begin_watched(batch: Any) -> Any:
        context = begin(batch)
        return context and watched(context)

    bench.writer.begin = begin_watched  # type: ignore[method-assign]


def test_the_first_layer_is_stored_before_the_last_is_computed(folder: Path) -> None:
    bench = Bench(folder, KeptStore())
    last, stored_at_last = len(bench.layout.layers) - 1, []

    def before(layer: int) -> None:
        if layer == last:
            assert bench.store.arrived.wait(10)
            stored_at_last.append(len(bench.store.times))

    around_layers(bench, before, lambda layer: None)
    bench.send(prompt(9))
    assert stored_at_last[0] >= 1


def test_a_failing_store_fails_the_prompt_and_not_the_engine(folder: Path) -> None:
    store = KeptStore()
    store.error = OSError("the store is full")
    bench = Bench(folder, store)
    asked = bench.begin(prompt(10), name=4)
    bench.tiny.run()
    bench.writer.finish()
    ((sequence, error),) = bench.writer.take_failures().items()
    assert sequence == asked and "store is full" in str(error)
    assert not bench.writer.take_failures()
    bench.writer.remove(sequence)
    bench.tiny.engine.kv_blocks.unpin(sequence)
    store.error = None
    bench.send(prompt(10), name=6)
    assert {place[0] for place in store.blocks} == {"6"}


def test_a_forward_that_throws_leaves_the_writer_idle(folder: Path) -> None:
    bench = Bench(folder, KeptStore())
    engine, scheduler = bench.tiny.engine, bench.tiny.built.scheduler
    runner = bench.tiny.built.worker.runner
    sequence = bench.begin(prompt(10), name=4)
    second = runner.model.model.layers[1]
    forward = second.forward

    def broken(*arguments: Any) -> Any:
        raise ArithmeticError("layer 1")

    assert scheduler.schedule()
    second.forward = broken
    with pytest.raises(ArithmeticError, match="layer 1"), torch.inference_mode():
        runner.forward(runner.begin(scheduler.batch))
    assert not bench.writer.in_progress
    assert {place[1] for place in bench.store.blocks} == {0}
    second.forward = forward
    scheduler.abort([sequence])
    scheduler.commit(np.full(1, -1, np.int32))
    bench.writer.remove(sequence)
    engine.kv_blocks.unpin(sequence)
    engine.kv_blocks.unpin(bench.send(prompt(10), name=8))
    stored = {place[1] for place in bench.store.blocks if place[0] == "8"}
    assert stored == set(bench.layout.layers)
    bench.tiny.assert_all_free()


class GatedStore(KeptStore):
    """A store that takes a prompt's blocks only once that is allowed."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = {name: threading.Event() for name in ("1", "2", "3")}

    def store(self, request: str, *arguments: Any, **options: Any) -> bool:
        assert self.gates[request].wait(10)
        return super().store(request, *arguments, **options)


def gated(folder: Path, **settings: Any) -> tuple[Bench, GatedStore]:
    """Whose blocks are copied away, so that they are held for the copies only."""
    store = GatedStore()
    bench = Bench(folder, store, **settings)
    bench.writer._send_buffer.keeps_blocks = False
    return bench, store


def test_copies_of_a_step_outlive_it(folder: Path) -> None:
    """Two prompts are computed while nothing of them is stored; only the third one waits."""
    bench, store = gated(folder)
    for name in (1, 2):
        bench.begin(prompt(9, seed=name), name)
        bench.tiny.run()
        assert not store.times and not bench.writer.take_failures()
        assert bench.held == name  # computed, and given to nobody else
    bench.begin(prompt(9, seed=3), 3)
    threading.Timer(0.05, store.gates["1"].set).start()
    bench.tiny.run()
    assert {place[0] for place in store.blocks} == {"1"}
    assert bench.held == 2
    for name in "32":  # what ends later has no part in when the other is released
        store.gates[name].set()
    bench.writer.finish()
    assert not bench.writer.in_progress
    bench.tiny.assert_all_free()


def test_the_forward_thread_waits_for_no_store(folder: Path) -> None:
    """It is through all layers while the only thread of the writer cannot store the first."""
    bench, store = gated(folder, writer=WriterSettings(threads=1))
    submitted: list[int] = []
    around_layers(bench, lambda layer: None, submitted.append)
    bench.begin(prompt(20))
    bench.tiny.run()
    assert submitted == list(bench.layout.layers)
    assert not store.times
    store.gates["1"].set()
    bench.writer.finish()
    assert sorted(layer for layer, _ in store.times) == submitted


@pytest.mark.parametrize("when_full", ["block", "raise"])
def test_a_full_queue_makes_the_forward_wait_or_fails_the_prompt(
    folder: Path, when_full: Literal["block", "raise"]
) -> None:
    """One layer is being stored, one is queued, and then there is no room for the third."""
    settings = WriterSettings(threads=1, queue_size=1, when_full=when_full)
    bench, store = gated(folder, writer=settings)
    opening = threading.Timer(0.05, store.gates["1"].set)

    def before(layer: int) -> None:
        if layer == 1:  # so that the first one is in the hands of the thread
            while bench.writer.queued:
                time.sleep(0.001)
        if layer == 2 and when_full == "block":
            opening.start()

    around_layers(bench, before, lambda layer: None)
    sequence = bench.begin(prompt(20))
    bench.tiny.run()
    assert store.gates["1"].is_set() == (when_full == "block")
    store.gates["1"].set()
    bench.writer.finish()
    stored, failures = {layer for layer, _ in store.times}, bench.writer.take_failures()
    assert stored == (set(range(3)) if when_full == "block" else {0, 1})
    assert list(failures) == ([] if when_full == "block" else [sequence])
    bench.tiny.assert_all_free()


def test_what_has_ended_is_released_without_waiting(folder: Path) -> None:
    bench, store = gated(folder)
    bench.begin(prompt(9))
    bench.tiny.run()
    bench.writer.take_failures()
    assert bench.writer.in_progress and bench.held == 1
    store.gates["1"].set()
    while bench.writer.in_progress:
        bench.writer.take_failures()
    bench.tiny.assert_all_free()


def test_chunks_of_a_prompt_share_its_blocks(folder: Path) -> None:
    """The end of an earlier chunk's copies frees no block of a later one."""
    bench, store = gated(folder, max_batch_tokens_size=8, max_running_requests=4)
    tokens = prompt(30, seed=5)
    bench.begin(tokens)
    bench.tiny.step()
    bench.tiny.step()
    threading.Timer(0.05, store.gates["1"].set).start()
    held = []
    end = bench.writer._end

    def watched(cycle: Any) -> None:
        end(cycle)
        held.append(bench.held)

    bench.writer._cycles._ended = watched
    bench.tiny.run()
    bench.writer.finish()
    assert held == [1, 1, 1, 0]
    assert {place: key for place, (key, _) in store.blocks.items()} == bench.expected(tokens, 1)
    bench.tiny.assert_all_free()


def test_a_copy_that_fails_after_its_step_is_reported(folder: Path) -> None:
    bench, store = gated(folder)
    sequence = bench.begin(prompt(9))
    bench.tiny.run()
    bench.writer.remove(sequence)  # it has its first token
    store.error = OSError("the store is full")
    assert not bench.writer.take_failures()
    store.gates["1"].set()
    bench.writer.finish()
    assert list(bench.writer.take_failures()) == [sequence]
    bench.tiny.assert_all_free()


def test_settings_are_checked() -> None:
    for name, most in (("threads", 1024), ("queue_size", 2**24)):
        with pytest.raises(ValueError, match=f"{name}: 0 is below the minimum 1"):
            WriterSettings(**{name: 0})
        with pytest.raises(ValueError, match=f"{name}: {10**9} is above the maximum {most}"):
            WriterSettings(**{name: 10**9})
