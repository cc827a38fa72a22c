# SPDX-License-Identifier: Apache-2.0
"""A GPU's blocks read by another one's process; skipped with fewer than two, or without NIXL."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from rtp_llm.config.roles import is_installed
from rtp_llm.device.cuda import CudaDevice
from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.testing.usable_gpu import usable_gpu

# The packages of the engine's link are not part of every image that has a GPU.
pytest.importorskip("msgspec")
DEVICE: Any = usable_gpu("cuda")
COUNT = DEVICE.device_count() if DEVICE else 0
pytestmark = [
    pytest.mark.skipif(COUNT < 2, reason=f"{COUNT} usable GPUs"),
    pytest.mark.skipif(not is_installed("nixl"), reason="nixl is not installed"),
]
# How the other process gets the second GPU (this one has the first): it sees both GPUs, or only
# that one.
OTHER = pytest.mark.parametrize(
    "environ", [{"LOCAL_RANK": "1"}, {CudaDevice.mask_variables[0]: "1"}], ids=["seen", "hidden"]
)
SETTINGS = {
    "device_type": "cuda",
    "allow_reference_ops": True,
    "kv_transport": "nixl",
    "max_batch_tokens_size": 96,
    "max_running_requests": 16,
    "seed": 5,
}
TIMEOUT = 120.0


@OTHER
@pytest.mark.parametrize("step", [1, 3], ids=["whole", "scattered"])
def test_bytes_are_equal(environ: dict[str, str], step: int) -> None:
    from rtp_llm.testing.disagg.shared_memory import SharedMemory, random_bytes
    from rtp_llm.testing.disagg.sides import wait_for

    shape = {"layers": 4, "block_bytes": 32 << 10, "step": step}
    expected = random_bytes(48 << 20, DEVICE)
    here = torch.zeros_like(expected)
    there = SharedMemory(DEVICE, here, shape, environ)
    for _ in range(2):
        here.zero_()
        free = DEVICE.new_event()
        free.record()
        load = there.load(free)
        wait_for(lambda load=load: load.done)  # type: ignore[misc]
        assert load.code == "none", load.message
        blocks = (here.view(-1, 32 << 10), expected.view(-1, 32 << 10))
        assert torch.equal(blocks[0][::step], blocks[1][::step])
        if step > 1:  # and nothing else
            assert not blocks[0][1::step].any()
    there.close()


def test_a_process_that_is_killed_while_it_is_read() -> None:
    from rtp_llm.testing.disagg.shared_memory import SharedMemory, random_bytes
    from rtp_llm.testing.disagg.sides import wait_for

    shape = {"layers": 8, "block_bytes": 16 << 10, "step": 2}
    expected = random_bytes(256 << 20, DEVICE)
    here = torch.zeros_like(expected)
    there = SharedMemory(DEVICE, here, shape, {"LOCAL_RANK": "1"})
    load = there.load()
    wait_for(lambda: bool(load.poll()) or load.done)
    there.process.kill()
    there.process.join()
    load.cancel()  # as the decode engine does when the connection ends
    wait_for(lambda: load.done)
    here.zero_()
    time.sleep(0.2)
    assert not here.any()
    there.close()


class Prefill:
    """A prefill worker in a process of its own, that may kill itself after some steps."""

    def __init__(self, folder: Path, environ: dict[str, str], **settings: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, far = context.Pipe()
        self.process = context.Process(target=_prefill, args=(far, folder, settings), daemon=True)
        with patch.dict(os.environ, environ):
            self.process.start()
        far.close()
        assert self.pipe.poll(TIMEOUT)
        self.address: str = self.pipe.recv()

    def live(self, steps: int) -> None:
        """Die in the middle of a prompt, after so many steps with work."""
        self.pipe.send(steps)

    def close(self) -> None:
        self.process.kill()
        self.process.join()


def _prefill(pipe: Connection, folder: Path, settings: dict[str, Any]) -> None:
    from rtp_llm.testing.disagg.workers import Worker

    here = {"role": "prefill", "prefill_address": "127.0.0.1:0"}
    worker = Worker(folder, **here, **settings)
    pipe.send(worker.built.ready.prefill_address)
    left = -1
    while True:
        if pipe.poll():
            left = pipe.recv()
        busy = worker.scheduler.stats()["running"] > 0
        worker.step()
        left -= busy
        if left == 0 and busy:
            time.sleep(0.005)  # for the blocks of that step to be offered
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.0005)


def finish(decode: Any, *requests: int) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not all(decode.outcomes[each].finish or each in decode.errors for each in requests):
        assert time.monotonic() < deadline, "it never ends"
        decode.step()
        time.sleep(0.0005)


def made_decode(folder: Path, address: str) -> Any:
    from rtp_llm.testing.disagg.workers import Worker

    decode = Worker(folder, role="decode", prefill_workers=address, **SETTINGS)
    deadline = time.monotonic() + TIMEOUT
    while not all(peer.ready for peer in decode.connector._peers.all):
        assert time.monotonic() < deadline, "the prefill worker is not found"
        decode.step()
    return decode


@OTHER
@pytest.mark.parametrize("architecture", ["qwen3", "mistral"])
def test_two_gpus_give_the_tokens_of_one(
    architecture: str, environ: dict[str, str], tmp_path: Path
) -> None:
    from rtp_llm.testing.engine.tiny_engine import TinyEngine

    window = {"sliding_window": 40} if architecture == "mistral" else {}
    save_model(tmp_path, architecture, seed=7, **window)
    alone = {name: value for name, value in SETTINGS.items() if name != "kv_transport"}
    fused = TinyEngine(tmp_path, dtype="float32", kv_cache_mem_mb=8, **alone)
    prefill = Prefill(tmp_path, environ, **SETTINGS)
    decode = made_decode(tmp_path, prefill.address)
    prompts = [random_prompt(length, seed=length) for length in (1, 15, 16, 17, 95, 96, 97, 160)]
    requests = [decode.add(prompt, max_tokens=24, ignore_eos=True) for prompt in prompts]
    finish(decode, *requests)
    for request, prompt in zip(requests, prompts, strict=True):
        expected = fused.tokens(prompt, max_tokens=24, ignore_eos=True)
        assert decode.outcomes[request].tokens == expected
    assert decode.transfers()["delivered"] == len(prompts) and not decode.failures()
    prefill.close()
    decode.connector.close()


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_prompt_of_a_worker_that_is_killed_is_computed_here(steps: int, tmp_path: Path) -> None:
    from rtp_llm.testing.engine.tiny_engine import TinyEngine

    save_model(tmp_path, "qwen3", seed=7, max_position_embeddings=512)
    alone = {name: value for name, value in SETTINGS.items() if name != "kv_transport"}
    fused = TinyEngine(tmp_path, dtype="float32", kv_cache_mem_mb=8, **alone)
    prefill = Prefill(tmp_path, {"LOCAL_RANK": "1"}, **SETTINGS)
    decode = made_decode(tmp_path, prefill.address)
    prefill.live(steps)
    prompt = random_prompt(420, seed=steps)  # in five steps
    request = decode.add(prompt, max_tokens=24, ignore_eos=True)
    finish(decode, request)
    expected = fused.tokens(prompt, max_tokens=24, ignore_eos=True)
    assert decode.outcomes[request].tokens == expected
    assert decode.transfers()["fallbacks"] == 1
    prefill.process.join(TIMEOUT)
    assert prefill.process.exitcode == -signal.SIGKILL and decode.is_idle()
    decode.base.engine.check_integrity()
    decode.connector.close()
