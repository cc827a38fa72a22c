# SPDX-License-Identifier: Apache-2.0
"""Tokens to experts of other GPUs and back: peer-memory kernels against the group's backend.

Microseconds of one layer among many in a captured graph, bfloat16, of the slowest rank; the choices
of a shape's tokens are random. Both ways: dispatch and combine. NCCL: in low-latency mode,
with messages of a fixed size. The goal is 20 us + the bytes that a rank sends both ways / 300 GB/s.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmark.gpu_time import microseconds, the_gpu
from benchmark.random_model import SHAPES, experts_of
from benchmark.rank_processes import together
from benchmark.report import Report, parser
from rtp_llm.device import Device
from rtp_llm.distributed.dispatch import AllToAll, LowLatencyAllToAll
from rtp_llm.distributed.membership import Membership
from rtp_llm.distributed.rows import TokenRows
from rtp_llm.distributed.symmetric_dispatch import SymmetricAllToAll, SymmetricDispatch, TokenLayout
from rtp_llm.distributed.world import World

TOKENS = (1, 4, 16, 64, 128, 256, 1024, 4096, 8192)
MAX_NCCL_TOKENS = 4096  # beyond, fixed sizes take too much memory
TIMEOUT = 120.0
GOAL_US, GOAL_RATE = 20.0, 300e9
COLUMNS = (
    "tokens a rank",
    "KiB sent",
    "NCCL, both ways",
    "dispatch",
    "combine",
    "both ways",
    "GB/s",
    "goal",
    "% of goal",
)


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--ranks", type=int, help="as many as there are GPUs, if not given")
    flags.add_argument("--shape", default="qwen3-30b-a3b", help="a model whose tokens are sent")
    flags.add_argument("--tokens", type=int, action="append", help="of each rank; may repeat")
    flags.add_argument("--rounds", type=int, help="replays of 20 layers; the quickest counts")
    arguments = flags.parse_args()
    mixtures = [name for name, sizes in SHAPES.items() if experts_of(sizes)]
    if arguments.shape not in mixtures:
        flags.error(f"--shape: one of {', '.join(mixtures)}")
    device = the_gpu()
    size = arguments.ranks or device.device_count()
    if not 2 <= size <= device.device_count():
        raise SystemExit(f"{size} ranks need two GPUs or more, one each; there are "
                         f"{device.device_count()}")  # fmt: skip
    tokens = arguments.tokens or list(TOKENS)
    rounds = arguments.rounds or (5 if arguments.quick else 50)
    title = f"dispatch and combine of {size} ranks, {arguments.shape}, {device.description()}"
    report = Report(title, COLUMNS)
    found = together(size, measure, arguments.shape, tokens, rounds)
    for number, count in enumerate(tokens):
        of_ranks = [rank[number] for rank in found]
        row = {name: max(each[name] for each in of_ranks) for name in of_ranks[0]}
        sent = row.pop("bytes")
        goal = GOAL_US + 1e6 * sent / GOAL_RATE
        if "both ways" in row:
            row["GB/s"] = sent / row["both ways"] / 1e3
            row["% of goal"] = 100 * goal / row["both ways"]
        report.add(**{"tokens a rank": count, "KiB sent": sent / 1024, "goal": goal}, **row)
    report.notes.append(f"the quickest of {rounds} replays")
    report.print()
    report.write(arguments.json)


def measure(
    membership: Membership, shape: str, tokens: list[int], rounds: int
) -> list[dict[str, float]]:
    """A rank's microseconds, for each number of tokens."""
    device = the_gpu()
    device.make_current()
    world, sizes = World.connect(membership, device, TIMEOUT), SHAPES[shape]
    form = TokenLayout(sizes["hidden_size"], torch.bfloat16, sizes["num_experts_per_tok"])
    with torch.inference_mode():
        direct = SymmetricDispatch.connect(world.tensors, device, form, max(tokens))
        if direct is None:
            raise SystemExit("no peer memory; what the log says is above")
        layer = _Layer(world, device, form, experts_of(sizes), direct)
        return [layer.times(count, rounds) for count in tokens]


class _Layer:
    """Measure dispatch and combine; received rows are sent back unchanged."""

    def __init__(
        self,
        world: World,
        device: Device,
        form: TokenLayout,
        experts: int,
        direct: SymmetricDispatch,
    ) -> None:
        self._world, self._device, self._form, self._direct = world, device, form, direct
        self._experts, self._slots = experts, experts // world.size

    def times(self, count: int, rounds: int) -> dict[str, float]:
        rows, world, slots = self._tokens(count), self._world, self._slots
        found = {"bytes": self._bytes_sent(rows)}
        if count <= MAX_NCCL_TOKENS:
            padded = LowLatencyAllToAll(world.tensors, slots, count)
            found["NCCL, both ways"] = self._time(lambda: self._through(padded, rows), rounds)
        if count <= self._direct.max_tokens:
            ours = SymmetricAllToAll(world.tensors, slots, count, self._direct.memory)
            there, sent = ours.dispatch(rows)
            found["dispatch"] = self._time(lambda: ours.dispatch(rows), rounds)
            found["combine"] = self._time(lambda: ours.combine(there.x, sent), rounds)
            found["both ways"] = self._time(lambda: self._through(ours, rows), rounds)
        return found

    def _tokens(self, count: int) -> TokenRows:
        place, form = self._device.torch_device, self._form
        torch.manual_seed(self._world.rank)
        x = torch.randn(count, form.hidden).to(place, form.dtype)
        weights, ids = torch.rand(count, self._experts, device=place).topk(form.k)
        return TokenRows(x, ids.int(), weights)

    def _bytes_sent(self, rows: TokenRows) -> float:
        """Rows of tokens to the other ranks, and as many results from them."""
        owners = rows.ids // self._slots
        ranks = torch.arange(self._world.size, device=owners.device)
        wanted = (owners[:, :, None] == ranks).any(1)
        wanted[:, self._world.rank] = False
        return 2.0 * int(wanted.sum().item()) * self._form.hidden * self._form.dtype.itemsize

    def _through(self, all_to_all: AllToAll, rows: TokenRows) -> Tensor:
        there, sent = all_to_all.dispatch(rows)
        return all_to_all.combine(there.x, sent)

    def _time(self, work: Callable[[], object], rounds: int) -> float:
        self._world.host.wait_for_all()
        return microseconds(self._device, work, rounds)


if __name__ == "__main__":
    main()
