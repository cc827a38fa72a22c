"""Ranks on several GPUs: the way to experts and back, and decode steps beside those of one rank.

An expert layer of the shape without its experts: choices are counted and mapped, tokens dispatched,
and what arrives is combined. Plain: two all-to-alls of as many bytes and nothing else, captured.
Steps are of a model of random weights with fewer layers; prompts of 128 tokens. Every figure is
that of the slowest rank.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmark.generation import prompts
from benchmark.gpu_engine import GpuEngine, add_flags, given_settings, greedy
from benchmark.gpu_time import microseconds
from benchmark.random_model import SHAPES
from benchmark.rank_processes import together
from benchmark.report import Report, parser
from rtp_llm.device import Device, resolve_device
from rtp_llm.distributed.dispatch import AllToAll, LowLatencyAllToAll, NormalAllToAll
from rtp_llm.distributed.expert_load import ExpertLoad
from rtp_llm.distributed.membership import Membership
from rtp_llm.distributed.placement import ExpertMap, Placement
from rtp_llm.distributed.rows import TokenRows
from rtp_llm.distributed.world import World

TOKENS = (1, 16, 64, 256, 4096)
MOST_PADDED = 256
BATCHES = (1, 16, 64)
PROMPT, STEPS = 128, 64
TIMEOUT = 120.0
COLUMNS = (
    "measured",
    "ranks",
    "tokens a rank",
    "captured",
    "eager",
    "exact sizes",
    "plain",
    "% of plain",
    "plain GB/s",
    "tokens/s",
)


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    add_flags(flags)
    flags.set_defaults(shape="qwen3-30b-a3b")
    flags.add_argument("--ranks", type=int, help="as many as there are GPUs, if not given")
    flags.add_argument(
        "--layers", type=int, default=8, help="of the model whose steps are measured"
    )
    flags.add_argument("--tokens", type=int, action="append", help="of a rank, for the all-to-all")
    flags.add_argument("--batch", type=int, action="append", help="sequences of a rank")
    arguments = flags.parse_args()
    mixtures = [name for name, sizes in SHAPES.items() if "num_experts" in sizes]
    if arguments.shape not in mixtures:
        flags.error(f"--shape: one of {', '.join(mixtures)}")
    device = resolve_device()
    size = arguments.ranks or (2 if device.name == "cpu" else device.device_count())
    if size < 2 or (device.name != "cpu" and size > device.device_count()):
        raise SystemExit(f"{size} ranks: two or more need as many GPUs, and there is "
                         f"{device.device_count()} of {device.name}")  # fmt: skip
    title = f"{size} ranks, {arguments.shape}, {arguments.layers} layers, {device.description()}"
    report = Report(title, COLUMNS)
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    add_all_to_alls(report, size, arguments, rounds)
    add_steps(report, size, arguments, rounds)
    report.notes.append("all-to-all in microseconds a layer, decode steps in milliseconds")
    report.notes.append(f"{rounds} rounds: the quickest all-to-all, the median step")
    report.print()
    report.write(arguments.json)


# -- the way to the experts and back ---------------------------------------------------------------


def add_all_to_alls(report: Report, size: int, arguments: argparse.Namespace, rounds: int) -> None:
    print(f"the all-to-all among {size} ranks ...", flush=True)
    tokens = arguments.tokens or TOKENS
    found = together(size, measure_all_to_alls, arguments.shape, tokens, rounds)
    for position, count in enumerate(tokens):
        row = {name: max(each[position][name] for each in found) for name in found[0][position]}
        if "captured" in row and "plain" in row:
            row["% of plain"] = 100 * row["plain"] / row["captured"]
        if "plain" in row:  # microseconds; bytes that leave a GPU, there and back
            row["plain GB/s"] = row.pop("bytes") / row["plain"] / 1e3
        row.pop("bytes", None)
        report.add(measured="all-to-all, us", ranks=size, **{"tokens a rank": count}, **row)


def measure_all_to_alls(
    membership: Membership, shape: str, tokens: list[int], rounds: int
) -> list[dict[str, float]]:
    """A rank's times in microseconds, for each number of tokens."""
    device = resolve_device()
    device.make_current()
    world = World.connect(membership, device, TIMEOUT)
    with torch.inference_mode():
        return [_Layer(world, device, shape, count).times(rounds) for count in tokens]


class _Layer:
    """What ranks add to one expert layer."""

    def __init__(self, world: World, device: Device, shape: str, tokens: int) -> None:
        place, sizes = device.torch_device, SHAPES[shape]
        hidden, experts = sizes["hidden_size"], sizes["num_experts"]
        placement = Placement.initial(experts, 0, world.size)
        self._world, self._device, self._tokens = world, device, tokens
        self._slots = placement.slots
        self._map = ExpertMap(placement, world.rank, place)
        self._count = ExpertLoad(1, experts, place).counter(0)
        torch.manual_seed(world.rank)
        self._x = torch.randn(tokens, hidden).to(place, torch.bfloat16)
        scores = torch.rand(tokens, experts, device=place)
        weights, ids = scores.topk(sizes["num_experts_per_tok"])
        self._weights, self._chosen = weights, ids.int()
        rows = world.size * tokens
        packed = TokenRows(self._x, self._chosen, weights).pack().shape[1]
        self._there = torch.zeros(rows, packed, dtype=torch.uint8, device=place)
        self._back = torch.zeros(rows, hidden, dtype=torch.bfloat16, device=place)

    def times(self, rounds: int) -> dict[str, float]:
        world, found = self._world, dict[str, float]()
        exact = NormalAllToAll(world.tensors, world.host, self._slots)
        found["exact sizes"] = self._eager(lambda: self._through(exact), rounds)
        padded = LowLatencyAllToAll(world.tensors, self._slots, self._tokens)
        captured = bool(self._device.supports("graph_capture"))
        if self._tokens <= MOST_PADDED:
            found["eager"] = self._eager(lambda: self._through(padded), rounds)
            if captured:
                found["captured"] = self._captured(lambda: self._through(padded), rounds)
        if captured:
            found["plain"] = self._captured(self._plain, rounds)
            leaving = (self._there.nbytes + self._back.nbytes) * (world.size - 1) / world.size
            found["bytes"] = leaving
        return found

    def _through(self, all_to_all: AllToAll) -> Tensor:
        ids = self._chosen.clone()
        self._count(ids, self._weights)
        self._map.apply(ids)
        rows, sent = all_to_all.dispatch(TokenRows(self._x, ids, self._weights))
        return all_to_all.combine(rows.x, sent)

    def _plain(self) -> None:
        self._world.tensors.all_to_all(self._there)
        self._world.tensors.all_to_all(self._back)

    def _captured(self, work: Callable[[], object], rounds: int) -> float:
        self._world.host.wait_for_all()
        return microseconds(self._device, work, 5 * rounds)

    def _eager(self, work: Callable[[], object], rounds: int) -> float:
        repeats, times = (2 if rounds == 1 else 20), []
        work()
        for _ in range(rounds):
            self._device.synchronize()
            self._world.host.wait_for_all()
            began = time.perf_counter()
            for _ in range(repeats):
                work()
            self._device.synchronize()
            times.append(1e6 * (time.perf_counter() - began) / repeats)
        return min(times)


# -- whole steps -----------------------------------------------------------------------------------


def add_steps(report: Report, size: int, arguments: argparse.Namespace, rounds: int) -> None:
    batches = arguments.batch or BATCHES
    settings = {
        "kv_cache_mem_mb": 4096,
        "max_seq_len": 512,
        "max_running_requests": max(batches),
        "max_batch_tokens_size": max(8192, *batches),
        **given_settings(arguments),
    }
    for ranks in (1, size):
        times: dict[str, list[list[float]]] = {}
        for name, graphs in (("captured", True), ("eager", False)):
            print(f"steps of {ranks} ranks, {name} ...", flush=True)
            given = {**settings, "enable_cuda_graph": graphs}
            asked = (arguments.shape, arguments.layers, batches, rounds, given)
            times[name] = together(ranks, measure_steps, *asked)
        for position, batch in enumerate(batches):
            row = {name: max(each[position] for each in found) for name, found in times.items()}
            best = ranks * batch / min(row.values()) * 1e3
            report.add(
                **{"measured": "decode step, ms", "ranks": ranks, "tokens a rank": batch},
                **{"tokens/s": best, **row},
            )


def measure_steps(
    membership: Membership | None,
    shape: str,
    layers: int,
    batches: list[int],
    rounds: int,
    settings: dict[str, Any],
) -> list[float]:
    """A rank's median milliseconds of a step, for each number of sequences."""
    rank, size = (membership.rank, membership.size) if membership else (0, 1)
    name = f"{shape}-{layers}-layers"
    SHAPES[name] = {**SHAPES[shape], "num_hidden_layers": layers}
    if size > 1:
        settings = {"data_parallel_size": size, "expert_capacity": max(batches), **settings}
    engine = GpuEngine(name, **settings)
    found = []
    for batch in batches:
        times: list[float] = []
        for number in range(1 + rounds):  # the first one warms up
            taken = _round(engine, rank, size, batch)
            times += taken if number else []
        found.append(1e3 * statistics.median(times))
    return found


def _round(engine: GpuEngine, rank: int, size: int, batch: int) -> list[float]:
    """Seconds of the steps in which all sequences decode."""
    vocabulary = engine.engine.limits.vocab_size
    mine = prompts(batch * size, PROMPT)[rank::size]
    engine.add([[token % vocabulary for token in prompt] for prompt in mine], greedy(STEPS))
    if engine.built.step_group is not None:
        engine.built.step_group.wake(0)
    steps = []
    while engine.engine.has_work:
        steps.append(engine.step())
    return [seconds for tokens, seconds in steps if tokens == batch]


if __name__ == "__main__":
    main()
