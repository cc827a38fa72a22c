# SPDX-License-Identifier: Apache-2.0
"""Whole workers over every transport: the same text as one engine, and nothing is leaked."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.disagg.transports import pull_load as load_module
from rtp_llm.disagg.transports import registry as ways
from rtp_llm.disagg.transports.libraries import LIBRARIES, chosen
from rtp_llm.engine.messages import EngineStartError
from rtp_llm.testing.disagg.sides import transport_called
from rtp_llm.testing.disagg.workers import SIZES, Pair, Worker, prompt
from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import save_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("model")
    save_model(made, "mistral", sliding_window=24, max_window_layers=1)
    with each_token_alone():
        yield made


@pytest.fixture(scope="module")
def fused(folder: Path) -> TinyEngine:
    return TinyEngine(folder, **SIZES)


@pytest.fixture(params=["copying", "nixl", "mooncake"])
def transport(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with transport_called(request.param, monkeypatch) as name:
        yield name


@pytest.fixture
def pair(folder: Path, transport: str) -> Iterator[Pair]:
    made = Pair(folder, **SIZES, kv_transport=transport)
    yield made
    made.close()


def test_text_is_that_of_one_engine(pair: Pair, fused: TinyEngine) -> None:
    prompts = [prompt(length, seed=length) for length in (1, 4, 5, 23, 24, 25, 48, 61)]
    requests = [pair.decode.add(tokens) for tokens in prompts]
    sampled = {"temperature": 1.5, "top_p": 0.95, "seed": 3}
    requests.append(pair.decode.add(prompt(30), **sampled))
    pair.until(lambda: pair.finished(*requests))
    expected = [*map(fused.tokens, prompts), fused.tokens(prompt(30), **sampled)]
    assert [pair.decode.outcomes[request].tokens for request in requests] == expected
    # The first blocks of this one are there: only the others travel.
    longer = [*prompts[-1], *prompt(9)]
    assert pair.tokens(longer) == fused.tokens(longer)
    assert pair.decode.transfers()["delivered"] == len(prompts) + 2
    assert pair.decode.failures() == {}
    pair.settle()


def test_workers_find_each_other_by_ipv6(folder: Path, fused: TinyEngine) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    pair = Pair(folder, **SIZES, prefill={"prefill_address": "[::1]:0"})
    assert pair.tokens(prompt(30)) == fused.tokens(prompt(30))
    assert pair.decode.transfers()["delivered"] == 1
    pair.close()


def test_an_aborted_request_leaves_nothing(pair: Pair) -> None:
    for steps in range(6):
        request = pair.decode.add(prompt(60, seed=steps))
        for _ in range(steps):
            pair.step()
        pair.decode.engine.abort([(request, 0)])
        pair.settle()


@pytest.mark.parametrize("steps", [0, 2, 4])
def test_a_prefill_worker_that_dies_leaves_the_prompt_to_us(
    pair: Pair, fused: TinyEngine, steps: int
) -> None:
    request = pair.decode.add(prompt(70, seed=steps))
    for _ in range(steps):
        pair.step()
    pair.prefill.connector.close()
    deadline = time.monotonic() + 60
    while not (pair.decode.outcomes[request].finish and pair.decode.is_idle()):
        assert time.monotonic() < deadline, "it never ends"
        pair.decode.step()
        time.sleep(0.001)
    assert pair.decode.outcomes[request].tokens == fused.tokens(prompt(70, seed=steps))
    pair.decode.base.engine.check_integrity()


def test_a_decode_worker_that_dies_frees_the_blocks(pair: Pair) -> None:
    pair.decode.add(prompt(70))
    for _ in range(3):
        pair.step()
    pair.decode.connector.close()
    deadline = time.monotonic() + 30
    while not pair.prefill.is_idle():
        assert time.monotonic() < deadline, pair.prefill.scheduler.stats()
        pair.prefill.step()
        time.sleep(0.001)
    pair.prefill.base.engine.check_integrity()


@pytest.mark.parametrize("asked", ["auto", "nixl"])
@pytest.mark.parametrize("how", ["broken", "unreachable", "insane", "hangs"])
def test_auto_goes_on_by_tcp_when_a_library_fails_and_a_name_does_not(
    folder: Path,
    fused: TinyEngine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    asked: str,
    how: str,
) -> None:
    monkeypatch.setattr(load_module, "CUT_SECONDS", 0.05)
    monkeypatch.setattr(
        ways, "chosen", lambda name: ["nixl", "tcp"] if name == "auto" else chosen(name)
    )
    with transport_called("copying", monkeypatch):
        library: Any = LIBRARIES["nixl"](None)
        decode = {"kv_load_timeout": 2} if how == "hangs" else {}
        pair = Pair(folder, **SIZES, kv_transport=asked, decode=decode)
        (peer,) = pair.peers.all
        setattr(library, how, True)
        ways_taken = ("nixl", "tcp", "tcp") if asked == "auto" else ("nixl",)
        for number, transport in enumerate(ways_taken):
            tokens = prompt(40, seed=number)
            assert pair.tokens(tokens) == fused.tokens(tokens)
            assert peer.transport == transport
        assert pair.decode.transfers()["fallbacks"] == 1
        assert pair.decode.transfers().get("delivered", 0) == number
        assert caplog.text.count("go by tcp until it connects anew") == (asked == "auto")
        setattr(library, how, False)
        address = pair.prefill.built.ready.prefill_address
        pair.prefill.connector.close()
        pair.prefill = Worker(
            folder, role="prefill", prefill_address=address, kv_transport=asked, **SIZES
        )
        pair.until(lambda: not peer.ready)
        pair.until(lambda: peer.ready)
        assert pair.tokens(prompt(41)) == fused.tokens(prompt(41))
        assert pair.decode.transfers()["delivered"] == number + 1 and peer.transport == "nixl"
        pair.settle()
        pair.close()


def test_two_sides_without_a_common_transport_say_so(folder: Path, transport: str) -> None:
    prefill = Worker(
        folder, role="prefill", prefill_address="127.0.0.1:0", kv_transport="tcp", **SIZES
    )
    address = prefill.built.ready.prefill_address
    with pytest.raises(EngineStartError, match=f"blocks by tcp, .* by {transport} "):
        Worker(folder, role="decode", prefill_workers=address, kv_transport=transport, **SIZES)
    prefill.connector.close()
