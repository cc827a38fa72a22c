# SPDX-License-Identifier: Apache-2.0
"""Grammars: a decoding step of 64 sequences, free and with a different JSON schema for each.

The demo model, or with `--shape` random weights and a random tokenizer of that many tokens (GPUs).
Contenders take turns; shown are the median step of the rounds, its spread, and of it what the host
takes to let matchers follow the step's tokens and to fill the masks of the next one: where steps
overlap, the device computes layers meanwhile. `--cpu-time`, with `--threads 1`: what the engine's
thread computed, which other programs on the machine change least.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from llguidance import LLMatcher

from benchmark.random_model import SHAPES
from benchmark.random_tokenizer import dummy_folder
from benchmark.report import Report, parser
from benchmark.rounds import interleave
from rtp_llm.config.settings import Settings
from rtp_llm.engine.messages import AddRequest, StepOutput
from rtp_llm.engine.start.build import BuiltEngine, build_engine
from rtp_llm.request.constraints import Grammar
from rtp_llm.request.sampling_params import SamplingParams

DEMO = pathlib.Path(__file__).parents[1] / "example" / "demo_model"
COLUMNS = ("constrained", "step ms", "spread ms", "x free", "follow ms", "fill ms")
PROMPT, STEPS, SKIPPED = 32, 100, 12


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--shape", choices=SHAPES, help="random weights in place of the demo model")
    flags.add_argument("--batch", type=int, default=64)
    flags.add_argument("--rounds", type=int)
    flags.add_argument("--cpu-time", action="store_true", help="of the engine's thread")
    arguments = flags.parse_args()
    rounds = arguments.rounds or (1 if arguments.quick else 5)
    built = _build(arguments.shape, arguments.batch, arguments.threads)
    batch, steps = arguments.batch, 10 if arguments.quick else STEPS
    load = Load(built, steps, time.thread_time if arguments.cpu_time else time.perf_counter)
    contenders: dict[str, Callable[[], float]] = {
        f"{count} of {batch}": lambda count=count: load.measure(batch, count)  # type: ignore[misc]
        for count in sorted({0, 1, batch // 2, batch})
    }
    figures = interleave(contenders, rounds)
    report = Report(f"Grammars, {arguments.shape or 'the demo model'}", COLUMNS)
    report.notes.append(f"{built.ready.device}; steps overlap: {built.worker.overlaps}")
    free = next(iter(figures.values())).median
    for name, figure in figures.items():
        follow, fill = load.host_times(int(name.split()[0]))
        report.add(
            constrained=name,
            **{
                "step ms": round(1e3 * figure.median, 3),
                "spread ms": " - ".join(f"{1e3 * each:.3f}" for each in figure.spread),
                "x free": round(figure.median / free, 3),
                "follow ms": round(1e3 * follow, 3),
                "fill ms": round(1e3 * fill, 3),
            },
        )
    report.print()
    report.write(arguments.json)


def _build(shape: str | None, batch: int, threads: int) -> BuiltEngine:
    settings: dict[str, Any] = {"model": str(DEMO), "kv_cache_mem_mb": 128, "num_threads": threads}
    if shape is not None:
        settings = {"model": str(dummy_folder(shape)), "load_format": "dummy"}
        settings |= {"kv_cache_mem_mb": 64} if shape.startswith("tiny") else {}
    built = build_engine(Settings(**settings, max_seq_len=512, max_running_requests=batch))
    while built.engine.has_idle_work:
        built.engine.work_idle()
    return built


def _schema(number: int) -> dict[str, Any]:
    """Return the schema of a long answer whose names are unique to `number`."""
    properties = {
        f"name {number}": {"type": "string"},
        f"age_{number}": {"type": "integer", "minimum": number},
        "tags": {"type": "array", "items": {"enum": ["a", "b", f"c{number}"]}, "minItems": 2},
        "ok": {"type": "boolean"},
    }
    item = {"type": "object", "properties": properties, "required": [*properties]}
    return {"type": "array", "items": {**item, "additionalProperties": False}, "minItems": 999}


@dataclasses.dataclass
class Timed:
    """A function, and the seconds of its calls."""

    function: Callable[..., Any]
    clock: Callable[[], float]
    seconds: list[float] = dataclasses.field(default_factory=list)

    def __call__(self, *arguments: Any) -> Any:
        start = self.clock()
        result = self.function(*arguments)
        self.seconds.append(self.clock() - start)
        return result


class Load:
    """Runs the same batches on one engine each time."""

    def __init__(self, built: BuiltEngine, steps: int, clock: Callable[[], float]) -> None:
        self._engine, self._steps, self._clock = built.engine, steps, clock
        self._vocabulary, self._numbers = built.ready.vocab_size, itertools.count(1)
        constraints = built.worker.constraints
        assert constraints is not None
        self._follow, self._fill = Timed(constraints.observe, clock), Timed(constraints.fill, clock)
        constraints.observe, constraints.fill = self._follow, self._fill  # type: ignore
        self._times: dict[int, list[tuple[float, float]]] = {}

    def measure(self, batch: int, constrained: int) -> float:
        """The median of the steps in which all sequences decode; seconds."""
        requests = [self._add(place, place < constrained) for place in range(batch)]
        decoding = 0
        while decoding < SKIPPED:
            decoding += self._rows(self._engine.step()) == batch
        self._follow.seconds.clear()
        self._fill.seconds.clear()
        seconds = []
        for _ in range(self._steps):
            start = self._clock()
            output = self._engine.step()
            seconds.append(self._clock() - start)
            assert self._rows(output) == batch, "a sequence has ended"
        self._times.setdefault(constrained, []).append(
            (statistics.median(self._follow.seconds), statistics.median(self._fill.seconds or [0]))
        )
        self._engine.abort([(request, 0) for request in requests])
        while self._engine.has_work:
            self._engine.step()
        return statistics.median(seconds)

    def host_times(self, constrained: int) -> tuple[float, float]:
        """Medians of following and filling, a step; seconds."""
        follow, fill = zip(*self._times[constrained], strict=True)
        return statistics.median(follow), statistics.median(fill)

    def _add(self, place: int, constrained: bool) -> int:
        options: Any = {"whitespace_flexible": False}
        text = LLMatcher.grammar_from_json_schema(_schema(place), overrides=options)
        random = np.random.default_rng(place)
        # Keeps free sequences from ending, too.
        params = SamplingParams(
            temperature=0.8, max_tokens=450, seed=place, ignore_eos=not constrained
        )
        number = next(self._numbers)
        self._engine.add(
            AddRequest(
                request_id=number,
                prompt_token_ids=random.integers(3, self._vocabulary, PROMPT).tolist(),
                params=params,
                grammar=Grammar(text=text) if constrained else None,
            )
        )
        return number

    @staticmethod
    def _rows(outputs: list[Any]) -> int:
        return sum(output.num_rows for output in outputs if isinstance(output, StepOutput))


if __name__ == "__main__":
    main()
