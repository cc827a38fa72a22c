# SPDX-License-Identifier: Apache-2.0
"""Whatever breaks between two workers, the request ends and every block comes back."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.config.options import SettingsError
from rtp_llm.config.settings import Settings, options
from rtp_llm.engine.messages import EngineStartError
from rtp_llm.testing.disagg.workers import SIZES, Pair, Worker, prompt
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import save_model
from rtp_llm.worker.layer_hooks import LayerHooks

pytest_plugins = "rtp_llm.testing.disagg.fixtures"


@pytest.fixture
def pair(folder: Path, request: Any) -> Iterator[Pair]:
    made = Pair(folder, **SIZES, **getattr(request, "param", {}))
    yield made
    made.close()


def drop_connections(pair: Pair) -> None:
    """As when a prefill worker is killed: control connections and transfers end."""
    pair.prefill.connector.close()


def settles(worker: Worker) -> bool:
    worker.step()
    time.sleep(0.001)
    return worker.is_idle()


def run_alone(worker: Worker, request: int) -> None:
    """Steps of the decode worker only."""
    deadline = time.monotonic() + 60
    while not (worker.outcomes[request].finish or request in worker.errors):
        assert time.monotonic() < deadline, "it never ends"
        worker.step()
        time.sleep(0.0005)


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4])
def test_a_prefill_worker_that_dies_leaves_the_prompt_to_us(
    pair: Pair, fused: TinyEngine, steps: int
) -> None:
    tokens = prompt(70, seed=steps)
    request = pair.decode.add(tokens)
    for _ in range(steps):
        pair.step()
    drop_connections(pair)
    run_alone(pair.decode, request)
    assert pair.decode.outcomes[request].tokens == fused.tokens(tokens)
    while not settles(pair.decode):
        pass
    pair.decode.base.engine.check_integrity()
    # Nobody is there any more: the next one is computed here at once.
    again = pair.decode.add(tokens)
    run_alone(pair.decode, again)
    assert pair.decode.outcomes[again].tokens == fused.tokens(tokens)


@pytest.mark.parametrize("pair", [{"decode": {"prefill_fallback": False}}], indirect=True)
def test_without_fallback_the_error_says_what_failed(pair: Pair) -> None:
    request = pair.decode.add(prompt(70))
    for _ in range(2):
        pair.step()
    drop_connections(pair)
    run_alone(pair.decode, request)
    message = pair.decode.errors[request]
    assert "the prefill worker failed (" in message and message.endswith("try again")
    while not settles(pair.decode):
        pass


@pytest.mark.parametrize("steps", [1, 2, 4, 8])
def test_a_decode_worker_that_dies_frees_the_blocks(pair: Pair, steps: int) -> None:
    pair.decode.add(prompt(70))
    for _ in range(steps):
        pair.step()
    pair.decode.connector.close()
    deadline = time.monotonic() + 30
    while not settles(pair.prefill):
        assert time.monotonic() < deadline, pair.prefill.scheduler.stats()
    pair.prefill.base.engine.check_integrity()


@pytest.mark.parametrize(
    "pair",
    [{"decode": {"prefill_timeout": 0.3}, "prefill": {"prefill_timeout": 0.3}}],
    indirect=True,
)
def test_a_worker_that_does_nothing_is_not_waited_for(pair: Pair, fused: TinyEngine) -> None:
    """It takes the prompt and never computes it, as when it is stopped."""
    tokens = prompt(50, seed=8)
    request = pair.decode.add(tokens)
    run_alone(pair.decode, request)
    assert pair.decode.outcomes[request].tokens == fused.tokens(tokens)
    assert set(pair.decode.failures()) <= {"prefill_timeout", "buffer_timeout"}
    pair.settle()


LIMITED = ("prefill_timeout", "kv_load_timeout", "cache_store_threads", "cache_store_queue_size")


@pytest.mark.parametrize("name", [*LIMITED, "answer_timeout"])
def test_numbers_beyond_their_limits_are_refused(name: str) -> None:
    limits = options()[name]
    assert limits.minimum is not None and limits.maximum is not None
    with pytest.raises(SettingsError, match=f"{name}: .* is above the maximum"):
        Settings(model="m", **{name: limits.maximum + 1})
    with pytest.raises(SettingsError, match=f"{name}: .* is below the minimum"):
        Settings(model="m", **{name: type(limits.minimum)(limits.minimum / 2)})
    for wrong in (float("nan"), float("inf"), -1, "soon", None):
        with pytest.raises(SettingsError, match=f"{name}: "):
            Settings(model="m", **{name: wrong})


@pytest.mark.parametrize("limit", ["minimum", "maximum"])
def test_numbers_at_their_limits_end_no_engine(folder: Path, fused: TinyEngine, limit: str) -> None:
    """All of them at once: every request has its answer, from wherever."""
    pair = Pair(folder, **SIZES, **{name: getattr(options()[name], limit) for name in LIMITED})
    prompts = [prompt(60, seed=number) for number in range(4)]
    requests = [pair.decode.add(tokens) for tokens in prompts]
    pair.until(lambda: pair.finished(*requests))
    for request, tokens in zip(requests, prompts, strict=True):
        assert pair.decode.outcomes[request].tokens == fused.tokens(tokens)
    if limit == "maximum":
        assert pair.decode.transfers()["delivered"] == len(prompts)
    pair.settle()
    pair.close()


@pytest.mark.parametrize("pair", [{"decode": {"kv_load_timeout": 0.2}}], indirect=True)
def test_a_block_that_never_comes_is_not_waited_for(pair: Pair, fused: TinyEngine) -> None:
    """The store of the prefill worker loses a layer, and says nothing."""
    writer: Any = pair.prefill.connector._sender.writer
    send = writer._send_buffer.send
    writer._send_buffer.send = lambda layer, prompts: layer == 1 or send(layer, prompts)
    tokens = prompt(50, seed=9)
    assert pair.tokens(tokens) == fused.tokens(tokens)
    assert pair.decode.failures() == {"buffer_timeout": 1}
    assert pair.decode.transfers()["fallbacks"] == 1
    pair.settle()


def test_a_store_that_fails_leaves_the_prompt_to_us(pair: Pair, fused: TinyEngine) -> None:
    writer: Any = pair.prefill.connector._sender.writer
    send = writer._send_buffer.send

    def broken(layer: int, prompts: Any) -> None:
        raise OSError("no room")

    writer._send_buffer.send = broken
    tokens = prompt(50, seed=10)
    assert pair.tokens(tokens) == fused.tokens(tokens)
    assert pair.prefill.failures() == {"store_failed": 1}
    writer._send_buffer.send = send
    delivered = pair.decode.transfers().get("delivered", 0)
    assert pair.tokens(prompt(51, seed=11)) == fused.tokens(prompt(51, seed=11))
    assert pair.decode.transfers()["delivered"] == delivered + 1
    pair.settle()


def no_pinned_memory(connector: Any) -> None:
    def new_receive_buffer(parts: Any) -> Any:
        raise RuntimeError("CUDA error: out of memory")

    connector._own.new_buffer = new_receive_buffer


def client_refuses(connector: Any) -> None:
    receiver = connector._own
    load = receiver.client.load

    class Refusing:
        def load(self, address: str, name: str, rows: Any, **options: Any) -> Any:
            return load(address, "", rows, **options)

        def __getattr__(self, name: str) -> Any:
            return getattr(client, name)

    client, receiver.client = receiver.client, Refusing()


@pytest.mark.parametrize("broken", [no_pinned_memory, client_refuses])
@pytest.mark.parametrize(
    "pair", [{}, {"decode": {"prefill_fallback": False}}], indirect=True, ids=["here", "fails"]
)
def test_a_load_that_cannot_begin_ends_no_engine(
    pair: Pair, fused: TinyEngine, broken: Callable[[Any], None]
) -> None:
    connector: Any = pair.decode.connector
    whole = dict(vars(connector._own))
    broken(connector)
    tokens = prompt(50, seed=12)
    request = pair.decode.add(tokens)
    pair.until(lambda: pair.finished(request))
    if connector._timeouts.fallback:
        assert pair.decode.outcomes[request].tokens == fused.tokens(tokens)
    else:
        assert "(load_failed)" in pair.decode.errors[request]
    assert pair.decode.failures() == {"load_failed": 1}
    pair.settle()
    vars(connector._own).update(whole)
    assert pair.tokens(tokens) == fused.tokens(tokens)
    assert pair.decode.transfers()["delivered"] == 1
    pair.settle()


def test_few_blocks_make_requests_wait_and_not_fail(folder: Path, fused: TinyEngine) -> None:
    """Room for two prompts on either side; twelve come."""
    pair = Pair(folder, **SIZES, max_seq_len=100, kv_cache_mem_mb=1)
    total = pair.decode.scheduler.stats()["total_blocks"]
    hog = pair.decode.scheduler
    prompts = [prompt(60, seed=30 + number) for number in range(12)]
    requests = [pair.decode.add(tokens, max_tokens=30) for tokens in prompts]
    pair.until(lambda: pair.finished(*requests))
    for request, tokens in zip(requests, prompts, strict=True):
        assert pair.decode.outcomes[request].tokens == fused.tokens(tokens, max_tokens=30)
    assert hog.stats()["total_blocks"] == total
    pair.settle()
    pair.close()


def test_other_blocks_are_refused_at_the_start_with_both_fingerprints(
    folder: Path, tmp_path: Path
) -> None:
    save_model(tmp_path, "qwen3", seed=1)  # the same shape, another model
    prefill = Worker(folder, role="prefill", prefill_address="127.0.0.1:0", **SIZES)
    address = prefill.built.ready.prefill_address
    wrong: list[tuple[Path, dict[str, Any], str]] = [
        (tmp_path, {}, "serve the same model folder on both"),
        (folder, {"seq_size_per_block": 8}, "block_size is 4 there and 8 here: .*--seq-size-per"),
        (folder, {"dtype": "bfloat16"}, "dtype is float32 there and bfloat16 here: .*--dtype"),
        (folder, {"quantization": "int8"}, "quantization is none there and int8 here: .*--quanti"),
    ]
    for model, change, remedy in wrong:
        settings = {**SIZES, "role": "decode", "prefill_workers": address, **change}
        with pytest.raises(EngineStartError, match=r"there: .*\n  here: ") as raised:
            Worker(model, **settings)
        there, here, *remedies = str(raised.value).splitlines()[1:]
        assert there.split(": ")[1] != here.split(": ")[1]
        assert re.search(remedy, remedies[0])
    prefill.connector.close()


class WaitingLayers:
    """Around a cycle of the writer: each layer ends only when all layers so far have arrived."""

    def __init__(self, context: Any, load: Any) -> None:
        self._context, self._load = context, load
        self.arrived: set[int] = set()
        self.seen: list[set[int]] = []

    def __enter__(self) -> Any:
        hooks = self._context.__enter__()

        def save_kv_layer(layer: int) -> None:
            hooks.save_kv_layer(layer)
            deadline = time.monotonic() + 20
            while layer not in self.arrived and time.monotonic() < deadline:
                time.sleep(0.005)  # the rest of the layer's forward
                self.arrived.update(self._load.poll())
            self.seen.append(set(self.arrived))

        return LayerHooks(save_kv_layer=save_kv_layer)

    def __exit__(self, *error: Any) -> Any:
        return self._context.__exit__(*error)


def test_layers_travel_while_later_ones_are_computed(pair: Pair) -> None:
    """With layers of 5 ms: layer k has arrived before layer k + 1 is begun."""
    decode: Any = pair.decode.connector
    pair.decode.add(prompt(20, seed=40))
    while not decode._by_name:
        pair.decode.step()
    (name,) = decode._by_name
    load = decode._own.loads[name]
    writer: Any = pair.prefill.connector._sender.writer
    begin, cycles = writer.begin, []

    def watched(batch: Any) -> Any:
        if (context := begin(batch)) is not None:
            cycles.append(WaitingLayers(context, load.loads[0]))
        return cycles[-1] if context is not None else None

    writer.begin = watched
    while not cycles:
        pair.prefill.step()
    layers = len(pair.prefill.base.worker.runner.cache.layers)
    assert cycles[0].seen == [set(range(layer + 1)) for layer in range(layers)]


def test_blocks_are_held_until_copies_of_a_prompt_that_nobody_wants_have_ended(pair: Pair) -> None:
    """Its name and its blocks could be another prompt's by then."""
    writer: Any = pair.prefill.connector._sender.writer
    gate, send = threading.Event(), writer._send_buffer.send

    def wait_and_send(*arguments: Any) -> None:
        assert gate.wait(60)
        send(*arguments)

    writer._send_buffer.send = wait_and_send
    request = pair.decode.add(prompt(20))
    pair.until(lambda: writer.in_progress)
    pair.decode.engine.abort([(request, 0)])
    pair.until(pair.decode.is_idle)
    asked = pair.prefill.connector._prompts
    pair.until(lambda: all(each.ended for each in asked.values()))
    pair.prefill.step()
    assert len(asked) == 1 and pair.prefill.scheduler.stats()["held"] == 1
    gate.set()
    pair.settle()
    assert not asked
