# SPDX-License-Identifier: Apache-2.0
"""How long work takes on a GPU: replays of a captured graph between two events of a stream."""

from __future__ import annotations

from collections.abc import Callable

import torch

from rtp_llm.device import Device, resolve_device

_REPEATS = 20  # of the work in a graph, so that its launch does not count


def the_gpu() -> Device:
    """Return this machine's GPU for the current build; exits the program if there is none."""
    device = resolve_device()
    if not device.supports("graph_capture"):
        raise SystemExit(
            f"this benchmark needs a GPU and runs on {device.name} here; on a machine with one: "
            "RTP_LLM_TORCH=local bazel run --config=cuda //benchmark:NAME (docs/build.md)"
        )
    return device


def microseconds(device: Device, work: Callable[[], object], rounds: int) -> float:
    """Return the fastest of `rounds` replays, divided by the repetitions in the graph."""
    replay = captured(device, work)
    return min(replay() for _ in range(rounds))


def captured(device: Device, work: Callable[[], object]) -> Callable[[], float]:
    """Replays the work when it is called; returns the microseconds of one time.

    A replay that is not timed keeps the GPU busy until the host has queued the timed one.
    """
    stream = device.new_stream()
    stream.wait_stream(device.current_stream())
    with device.use_stream(stream):
        work()
    device.current_stream().wait_stream(stream)
    graph = device.new_graph()
    with graph.capture():
        for _ in range(_REPEATS):
            work()
    begin, end = device.new_event(timed=True), device.new_event(timed=True)

    def replay() -> float:
        graph.replay()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return 1000 * begin.elapsed_time(end) / _REPEATS

    return replay


def copy_bandwidth(device: Device, rounds: int, count: int = 2**29) -> float:
    """Bytes per second, read and written, of a kernel that copies float32 numbers.

    Tensor.copy_ would be a node of another kind in a graph, and slower.
    """
    source = torch.zeros(count, device=device.torch_device)
    target = torch.empty_like(source)
    taken = microseconds(device, lambda: torch.add(source, 0, out=target), rounds)
    return 2 * source.nbytes / taken * 1e6
