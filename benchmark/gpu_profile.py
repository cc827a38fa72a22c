# SPDX-License-Identifier: Apache-2.0
"""Where a decode step's time goes on a GPU: share by kernel, and idle time.

Kernels are traced inside the graphs. Busy: the union of their intervals, as overlapped
launches count once; idle: what is left of the same step's time measured without the trace.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Iterable

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmark.generation import prompts
from benchmark.gpu_engine import (
    GpuEngine,
    add_flags,
    add_mtp,
    add_routing,
    given_settings,
    greedy,
    mtp_settings,
    states_mib,
)
from benchmark.random_model import SHAPES
from benchmark.report import Report, parser
from rtp_llm.device import Device, resolve_device

BATCHES = (1, 64, 256)
PROMPT, WARM_UPS, STEPS, TIMED = 128, 8, 20, 100
SHOWN, NAME_LENGTH = 30, 90
COLUMNS = ("batch", "kernel", "a step", "us a step", "% of busy")
SUMMARY = ("batch", "step us", "GPU busy us", "idle us", "% idle", "idle % in trace")

Interval = tuple[str, float, float]  # name, begin and end in microseconds


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    add_flags(flags)
    add_routing(flags)
    add_mtp(flags)
    flags.add_argument("--batch", type=int, action="append")
    arguments = flags.parse_args()
    device = resolve_device()
    batches = arguments.batch or BATCHES
    own = {
        "kv_cache_mem_mb": _cache_mib(arguments.shape, device, max(batches)),
        "max_seq_len": 1024,
        "max_running_requests": max(batches),
        "max_batch_tokens_size": 8192,
        **mtp_settings(arguments.mtp),
    }
    print("building the engine ...", flush=True)
    changes = {**own, **given_settings(arguments)}
    engine = GpuEngine(arguments.shape, routes_evenly=arguments.uniform_routing, **changes)
    title = f"{device.description()}, shape {arguments.shape}"
    kernels = Report(f"Kernels of a step on {title}", COLUMNS)
    summary = Report(f"Idle share of a step on {title} (goal: under 5%)", SUMMARY)
    for batch in batches:
        print(f"batch {batch} ...", flush=True)
        measure(engine, device, batch, arguments, kernels, summary)
    for report in (kernels, summary):
        report.print()
    kernels.rows += summary.rows
    kernels.write(arguments.json)


def _cache_mib(shape: str, device: Device, batch: int) -> int:
    return max(12 * 1024 if device.name != "cpu" else 256, states_mib(shape, batch))


def measure(
    engine: GpuEngine,
    device: Device,
    batch: int,
    arguments: argparse.Namespace,
    kernels: Report,
    summary: Report,
) -> None:
    """The kernels and the summary of one size of batch."""
    width = 1 + arguments.mtp
    steps = (WARM_UPS + STEPS + TIMED) * width
    size = SHAPES[arguments.shape]["vocab_size"]
    prompt_ids = [[token % size for token in prompt] for prompt in prompts(batch, PROMPT)]
    engine.add(prompt_ids, greedy(steps + 4))
    while engine.step()[0] != batch * width:
        pass  # prompts
    for _ in range(WARM_UPS):
        engine.step()
    step = 1e6 * statistics.median(engine.step()[1] for _ in range(TIMED))
    intervals = trace(engine, device)
    engine.seconds_to_end()
    add_kernels(kernels, batch, intervals)
    busy = busy_microseconds(intervals) / STEPS
    span = max(i[2] for i in intervals) - min(i[1] for i in intervals) if intervals else 0.0
    summary.add(
        **{
            "batch": batch,
            "step us": step,
            "GPU busy us": busy,
            "idle us": max(0.0, step - busy),
            "% idle": 100 * max(0.0, 1 - busy / step),
            "idle % in trace": 100 * (1 - busy * STEPS / span) if span else None,
        }
    )


def trace(engine: GpuEngine, device: Device) -> list[Interval]:
    """Return the device's activities during STEPS steps."""
    activities = {ProfilerActivity.CPU, device.profiler_activity}
    device.synchronize()
    with profile(activities=sorted(activities, key=str), acc_events=True) as tracer:
        for _ in range(STEPS):
            engine.step()
        device.synchronize()
    wanted = DeviceType.CPU if device.name == "cpu" else DeviceType.CUDA
    return [
        (event.name, float(event.time_range.start), float(event.time_range.end))
        for event in tracer.events() or ()
        if event.device_type == wanted
    ]


def add_kernels(report: Report, batch: int, intervals: Iterable[Interval]) -> None:
    """The kernels that take longest, and all others in one row."""
    times: dict[str, list[float]] = defaultdict(list)
    for name, begin, end in intervals:
        times[name].append(end - begin)
    total = sum(map(sum, times.values())) or 1.0
    ordered = sorted(times.items(), key=lambda item: -sum(item[1]))
    rest = [value for _, values in ordered[SHOWN:] for value in values]
    for name, values in [*ordered[:SHOWN], ("all others", rest)]:
        report.add(
            **{
                "batch": batch,
                "kernel": name[:NAME_LENGTH],
                "a step": len(values) / STEPS,
                "us a step": sum(values) / STEPS,
                "% of busy": 100 * sum(values) / total,
            }
        )


def busy_microseconds(intervals: Iterable[Interval]) -> float:
    """Length of the union of the intervals."""
    busy, reached = 0.0, float("-inf")
    for _, begin, end in sorted(intervals, key=lambda interval: interval[1]):
        busy += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return busy


if __name__ == "__main__":
    main()
