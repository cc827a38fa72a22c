"""Verification of drafts on a GPU: milliseconds a step, beside a plain step that decodes.

Random weights in bfloat16, prompts of 128 tokens, 128 new ones. No draft is ever accepted, so that
a step with drafts computes 1 + k tokens of each sequence and gives one. Drafts need the tokens of
the step before, so the host waits for it, as with n-grams: `waiting` is a plain step with that
wait. `layers` are the layers alone, in graphs: replays between two marks.
"""

from __future__ import annotations

import functools

from benchmark.generation import prompts
from benchmark.gpu_engine import GpuEngine, add_flags, given_settings, greedy
from benchmark.random_model import SHAPES
from benchmark.report import Report, parser
from benchmark.rounds import interleave
from rtp_llm.device import Device, resolve_device
from rtp_llm.worker.graphs.capture_sizes import GraphSize
from rtp_llm.worker.speculative.device_proposer import DeviceProposer

PROMPT, STEPS, REPLAYS = 128, 128, 20
BATCHES = (1, 16)
COLUMNS = (
    "batch",
    "plain ms",
    "waiting ms",
    "verify ms",
    "verify / plain",
    "verify / waiting",
    "eager verify ms",
    "plain layers ms",
    "verify layers ms",
)


class WrongDrafts(DeviceProposer):
    """Drafts for every sequence, none of which is ever accepted; made from tokens, as n-grams."""

    needs_tokens = True


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    add_flags(flags)
    flags.add_argument("--batch", type=int, action="append")
    flags.add_argument("--drafts", type=int, default=3, help="draft tokens of a sequence")
    arguments = flags.parse_args()
    rounds = arguments.rounds or (2 if arguments.quick else 5)
    batches, width = arguments.batch or BATCHES, 1 + arguments.drafts
    device = resolve_device()
    own = {
        "kv_cache_mem_mb": 4 * 1024,
        "max_seq_len": 1024,
        "max_running_requests": max(batches),
        "max_batch_tokens_size": 8192,
        "speculative_adaptive": False,  # no draft is right, so there would soon be none
    }
    changes = {**own, **given_settings(arguments)}
    print("building the contenders ...", flush=True)
    build = functools.partial(GpuEngine, arguments.shape)
    drafts = functools.partial(WrongDrafts, arguments.drafts)
    engines = {
        "plain": build(**changes),
        "waiting": build(**{**changes, "enable_overlap": False}),
        "verify": build(proposer=drafts(), **changes),
        "eager verify": build(proposer=drafts(), **{**changes, "enable_cuda_graph": False}),
    }
    title = f"Verifying {arguments.drafts} drafts on {device.description()}"
    report = Report(f"{title}, shape {arguments.shape}", COLUMNS)
    report.notes.append(f"{rounds} interleaved rounds")
    for batch in batches:
        print(f"batch {batch} ...", flush=True)
        measure(report, engines, batch, width, rounds, device, arguments.shape)
    report.print()
    report.write(arguments.json)


def measure(
    report: Report,
    engines: dict[str, GpuEngine],
    batch: int,
    width: int,
    rounds: int,
    device: Device,
    shape: str,
) -> None:
    """One row."""
    size = SHAPES[shape]["vocab_size"]
    asked = [[token % size for token in prompt] for prompt in prompts(batch, PROMPT)]
    widths = {name: width if "verify" in name else 1 for name in engines}
    figures = interleave(
        {
            name: functools.partial(step_seconds, engine, asked, widths[name])
            for name, engine in engines.items()
        },
        rounds,
    )
    median = {name: figure.median for name, figure in figures.items()}
    layers = {
        f"{name} layers ms": seconds
        for name in ("plain", "verify")
        if (seconds := layers_ms(engines[name], batch, widths[name], device))
    }
    report.add(
        **{
            "batch": batch,
            **{f"{name} ms": 1e3 * value for name, value in median.items()},
            "verify / plain": median["verify"] / median["plain"],
            "verify / waiting": median["verify"] / median["waiting"],
            **layers,
        }
    )


def step_seconds(engine: GpuEngine, asked: list[list[int]], width: int) -> float:
    """Mean time of a step from the first one on in which all sequences have `width` tokens."""
    engine.add(asked, greedy(STEPS))
    steps, seconds = 0, 0.0
    while engine.engine.has_work:
        tokens, taken = engine.step()
        if steps or tokens == len(asked) * width:
            steps, seconds = steps + bool(tokens), seconds + taken
    return seconds / steps


def layers_ms(engine: GpuEngine, batch: int, width: int, device: Device) -> float | None:
    """Of one replay on what the last step left; None without a graph of this size."""
    graphs = engine.built.worker.runner._graphs
    captured = graphs and graphs._captured.get(GraphSize(batch * width, batch, width))
    if not captured:
        return None
    times = []
    begin, end = device.new_event(timed=True), device.new_event(timed=True)
    for _ in range(REPLAYS):
        begin.record()
        captured.graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return min(times)


if __name__ == "__main__":
    main()
