# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding without another model, on the CPU: tokens a second with the demo model.

Three kinds of text: answers that were given before, to other requests; answers that stand in the
chat already; and stories that are made up each time. Engines take turns; shown are the median of
the rounds, their spread and, of the last one, how many tokens a verified sequence gained in a step,
and the median time from the tokens of a step to the start of the next one: where steps cannot
overlap, a GPU waits so long.
"""

from __future__ import annotations

import functools
import itertools
import pathlib
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmark.report import Report, parser
from benchmark.rounds import interleave
from rtp_llm import LLM, SamplingParams
from rtp_llm.engine.engine import Engine

DEMO = pathlib.Path(__file__).parents[1] / "example" / "demo_model"
ENGINES: dict[str, dict[str, Any]] = {
    "none": {},
    "ngram, 3": {"speculative": "ngram", "num_speculative_tokens": 3},
    "suffix, 3": {"speculative": "suffix", "num_speculative_tokens": 3},
    "suffix, 7": {"speculative": "suffix", "num_speculative_tokens": 7},
    "suffix, 7, not adaptive": {
        "speculative": "suffix",
        "num_speculative_tokens": 7,
        "speculative_adaptive": False,
    },
}
COLUMNS = (
    "text",
    "batch",
    "speculation",
    "tokens/s",
    "spread",
    "x none",
    "acceptance length",
    "gap us",
)
HEROES = ("fox", "dog", "cat", "owl", "bear", "mouse", "rabbit", "frog")
Chat = list[dict[str, str]]


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--batch", type=int, action="append")
    flags.add_argument("--rounds", type=int)
    arguments = flags.parse_args()
    rounds = arguments.rounds or (1 if arguments.quick else 5)
    count = 4 if arguments.quick else 32
    names = list(ENGINES)[:: 3 if arguments.quick else 1]
    engines = {
        name: LLM(DEMO, num_threads=arguments.threads, kv_cache_mem_mb=64, **ENGINES[name])
        for name in names
    }
    report = Report("Speculative decoding on the CPU, the demo model", COLUMNS)
    for text, make in TEXTS.items():
        for batch in arguments.batch or (1, 8):
            _measure(report, engines, text, batch, functools.partial(make, count), rounds)
    report.print()
    report.write(arguments.json)


def _measure(
    report: Report,
    engines: dict[str, LLM],
    text: str,
    batch: int,
    make: Callable[[], tuple[list[Chat], list[SamplingParams]]],
    rounds: int,
) -> None:
    seen: dict[str, tuple[float, float]] = {}

    def rate(name: str) -> float:
        chats, params = make()
        found, *seen[name] = _rate(engines[name], chats, params, batch)
        return found

    contenders = {name: functools.partial(rate, name) for name in engines}
    figures = interleave(contenders, rounds)
    for name, figure in figures.items():
        report.add(
            **{
                "text": text,
                "batch": batch,
                "speculation": name,
                "tokens/s": figure.median,
                "spread": figure.spread,
                "x none": figure.median / figures["none"].median,
                "acceptance length": seen[name][0] if ENGINES[name] else None,
                "gap us": seen[name][1],
            }
        )


def _rate(
    llm: LLM, chats: list[Chat], params: list[SamplingParams], batch: int
) -> tuple[float, float, float]:
    """Return tokens/s for this many concurrent chats, the mean acceptance length and the gap."""
    engine = llm._engine
    assert isinstance(engine, Engine)
    before = engine.stats()
    gaps = _Gaps(engine)
    tokens, began = 0, time.perf_counter()
    for first in range(0, len(chats), batch):
        part = slice(first, first + batch)
        for output in llm.chat(chats[part], params[part], use_tqdm=False):
            tokens += len(output.outputs[0].token_ids)
    seconds = time.perf_counter() - began
    after = engine.stats()
    drafts = after.spec_decode_num_drafts - before.spec_decode_num_drafts
    accepted = after.spec_decode_num_accepted_tokens - before.spec_decode_num_accepted_tokens
    return tokens / seconds, 1.0 + accepted / max(1, drafts), 1e6 * gaps.end()


class _Gaps:
    """Watches an engine whose steps do not overlap."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._commit, self._execute = engine._commit, engine._worker.execute
        self._read: float | None = None
        self._gaps: list[float] = []
        engine._commit = self._committing  # type: ignore[method-assign]
        engine._worker.execute = self._executing  # type: ignore[method-assign]

    def _committing(self, outputs: Any) -> Any:
        self._read = time.perf_counter()
        return self._commit(outputs)

    def _executing(self, plan: Any, *, more: bool) -> Any:
        if self._read is not None:
            self._gaps.append(time.perf_counter() - self._read)
            self._read = None
        return self._execute(plan, more=more)

    def end(self) -> float:
        """Stop watching and return the median gap in seconds."""
        self._engine._commit = self._commit  # type: ignore[method-assign]
        self._engine._worker.execute = self._execute  # type: ignore[method-assign]
        return statistics.median(self._gaps)


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _said_before(count: int) -> tuple[list[Chat], list[SamplingParams]]:
    """Ask the same questions in each round, after a warm-up round."""
    sums = random.Random(1)
    questions = [f"Tell me a story about a {hero}." for hero in HEROES]
    while len(questions) < count:
        questions.append(f"What is {sums.randint(10, 99)} + {sums.randint(10, 99)}?")
    sums.shuffle(questions)
    greedy = SamplingParams(temperature=0.0, max_tokens=96)
    return [[_user(question)] for question in questions[:count]], [greedy] * count


@functools.cache
def _stories() -> list[tuple[Chat, str]]:
    """Questions for stories, and the stories that the model writes."""
    questions = [[_user(f"Tell me a story about a {hero}.")] for hero in HEROES]
    params = SamplingParams(temperature=0.0, max_tokens=96)
    with LLM(DEMO, num_threads=1, kv_cache_mem_mb=64) as llm:
        outputs = llm.chat(questions, params, use_tqdm=False)
    return [(chat, output.outputs[0].text) for chat, output in zip(questions, outputs, strict=True)]


def _in_the_chat(count: int) -> tuple[list[Chat], list[SamplingParams]]:
    """Ask again for a story that was told earlier in the chat."""
    chats = []
    for number in range(count):
        question, story = _stories()[number % len(HEROES)]
        chats.append([*question, {"role": "assistant", "content": story}, *question])
    greedy = SamplingParams(temperature=0.0, max_tokens=96)
    return chats, [greedy] * count


_seeds = itertools.count(1)


def _made_up(count: int) -> tuple[list[Chat], list[SamplingParams]]:
    """Sample stories with seeds that never repeat."""
    chats = [[_user(f"Tell me a story about a {HEROES[i % len(HEROES)]}.")] for i in range(count)]
    params = [
        SamplingParams(temperature=1.5, max_tokens=96, seed=next(_seeds)) for _ in range(count)
    ]
    return chats, params


TEXTS = {"said before": _said_before, "in the chat": _in_the_chat, "made up": _made_up}


if __name__ == "__main__":
    main()
