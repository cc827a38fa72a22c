# SPDX-License-Identifier: Apache-2.0
"""Fairness: how a key that floods the server affects another key's time to first token.

"other" sends one prompt each --interval seconds: alone, then while as many clients as the flood
has send all the time, with a key of their own ("flood"), and with the key "other" itself, which is
what a server without keys does. Throughput counts the tokens of prompts and answers of all; with
two keys it should equal the throughput of the same load with one key. Client, server and engine
share the machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import pathlib
import random
import statistics
import tempfile
import time
from collections.abc import Iterator

from benchmark.report import Report, parser
from benchmark.server_process import ROOT, ServerProcess, stream
from rtp_llm.server.keys.key_file import new_key

_DEMO = ROOT / "example" / "demo_model"
COLUMNS = ("load", "first token ms p50", "p95", "x alone", "answers", "tokens/s", "of one key's")
_FIRST_ID, _IDS = 300, 700  # plain tokens of the demo model


def main() -> None:
    flags = parser((__doc__ or "").splitlines()[0])
    flags.add_argument("--model", default=str(_DEMO))
    flags.add_argument("--seconds", type=float, help="of one load in one round")
    flags.add_argument("--rounds", type=int)
    flags.add_argument("--interval", type=float, default=1.0)
    flags.add_argument("--clients", type=int, default=32, help="of the flood")
    flags.add_argument("--running", type=int, default=8, help="sequences that run at once")
    flags.add_argument("--prompt", type=int, default=700, help="tokens of the other's prompts")
    flags.add_argument("--flood-prompt", type=int, default=64)
    flags.add_argument("--flood-tokens", type=int, default=32, help="of each answer of the flood")
    arguments = flags.parse_args()
    arguments.seconds = arguments.seconds or (4.0 if arguments.quick else 20.0)
    arguments.rounds = arguments.rounds or (1 if arguments.quick else 3)
    report = Report("A key that floods, and another one", COLUMNS)
    report.notes.append(
        f"{arguments.rounds} interleaved rounds of {arguments.seconds:g} s; the other key: a "
        f"prompt of {arguments.prompt} each {arguments.interval:g} s; the flood: "
        f"{arguments.clients} clients, prompts of {arguments.flood_prompt}, "
        f"answers of {arguments.flood_tokens}; "
        f"{arguments.running} run at once."
    )
    with key_file() as (path, flood, other):
        running = ["--max-running-requests", str(arguments.running), "--reuse-cache", "off"]
        settings = ["--api-key-file", path, "--num-threads", str(arguments.threads), *running]
        with ServerProcess(arguments.model, *settings) as server:
            loads = {
                "other alone": Load(server.url, arguments, other, None),
                "flood alone": Load(server.url, arguments, None, flood),
                "both, two keys": Load(server.url, arguments, other, flood),
                "both, one key": Load(server.url, arguments, other, other),
            }
            for _ in range(arguments.rounds):
                for load in loads.values():
                    asyncio.run(load.run())
    show(report, loads)
    report.print()
    report.write(arguments.json)


@contextlib.contextmanager
def key_file() -> Iterator[tuple[str, str, str]]:
    """Write a file with two keys; return its path and the keys."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "keys.toml"
        (flood, first), (other, second) = new_key("flood"), new_key("other")
        path.touch(0o600)
        path.write_text(first + second)
        yield str(path), flood, other


class Load:
    """One kind of load, over several rounds. ``other``, ``flood``: keys, or None for no client."""

    def __init__(
        self, url: str, arguments: argparse.Namespace, other: str | None, flood: str | None
    ) -> None:
        self._url, self._arguments, self._other, self._flood = url, arguments, other, flood
        self._random = random.Random(0)
        self.firsts: list[float] = []
        self.tokens, self.seconds = 0, 0.0
        self._counts: list[tuple[float, int]] = []  # when so many tokens were there

    async def run(self) -> None:
        """Run one round; tokens that arrive before or after it are not counted."""
        self._counts = []
        clients = self._arguments.clients if self._flood else 0
        self._over = False
        flood = [asyncio.create_task(self._send_all_the_time()) for _ in range(clients)]
        await asyncio.sleep(min(2.0, self._arguments.seconds / 4))
        began = time.perf_counter()
        tasks = [asyncio.create_task(self._ask(at)) for at in self._times()]
        await asyncio.sleep(self._arguments.seconds)
        ended = time.perf_counter()
        self.firsts += [await each for each in tasks]
        self._over = True
        await asyncio.gather(*flood)
        self.tokens += sum(count for at, count in self._counts if began <= at < ended)
        self.seconds += ended - began

    def _times(self) -> list[float]:
        """Return the other key's request times, jittered so as not to align with the flood."""
        if self._other is None:
            return []
        interval = self._arguments.interval
        count = max(1, int(self._arguments.seconds / interval))
        return [interval * (number + self._random.random() / 2) for number in range(count)]

    async def _ask(self, seconds: float) -> float:
        await asyncio.sleep(seconds)
        return await self._stream(self._arguments.prompt, 2, self._other)

    async def _send_all_the_time(self) -> None:
        await asyncio.sleep(self._random.random() / 2)
        while not self._over:
            await self._stream(
                self._arguments.flood_prompt, self._arguments.flood_tokens, self._flood
            )

    async def _stream(self, length: int, max_tokens: int, key: str | None) -> float:
        """Request one answer and return the time to its first token, in seconds."""
        prompt = [_FIRST_ID + self._random.randrange(_IDS) for _ in range(length)]
        began = time.perf_counter()
        answer = await stream(self._url, prompt, max_tokens, key=key)
        self._counts.append((began + answer.first, length))
        self._counts += [(began + at, 1) for at in answer.times[: answer.tokens]]
        return answer.first


def show(report: Report, loads: dict[str, Load]) -> None:
    """A row for each load."""
    alone = p95(loads["other alone"].firsts)
    rates = {name: load.tokens / load.seconds for name, load in loads.items()}
    for name, load in loads.items():
        firsts = load.firsts
        report.add(
            **{
                "load": name,
                "first token ms p50": 1e3 * statistics.median(firsts) if firsts else None,
                "p95": 1e3 * p95(firsts) if firsts else None,
                "x alone": p95(firsts) / alone if firsts else None,
                "answers": len(firsts),
                "tokens/s": rates[name],
                "of one key's": rates[name] / rates["both, one key"],
            }
        )


def p95(values: list[float]) -> float:
    """Return the 95th percentile of `values`."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(0.95 * len(ordered)) - 1)] if ordered else 0.0


if __name__ == "__main__":
    main()
