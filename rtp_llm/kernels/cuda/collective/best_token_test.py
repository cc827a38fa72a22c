# SPDX-License-Identifier: Apache-2.0
"""Best tokens over ranks that share one GPU."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.testing.operator_checks import kernel_runs
from rtp_llm.testing.stream_ranks import StreamRanks

CAPACITY = 1 << 20

every_size = pytest.mark.parametrize("size", [1, 2, 3, 4, 8])


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="module", autouse=True)
def loaded_kernels() -> None:
    """Load both kernels by a rank without a peer: loading may wait for kernels that wait."""
    ranks = StreamRanks(1, CAPACITY)
    logits, found = torch.randn(3, 40), torch.zeros(3, dtype=torch.int32)
    status = torch.zeros(3, dtype=torch.int8)
    ranks.run(partial(best_of, ranks, [logits], [found], [status]))
    x = torch.ones(9, 512).bfloat16()
    ranks.run(lambda rank: ops.all_reduce(x, *ranks.among(rank)))


def rows_of_logits(count: int, columns: int) -> Tensor:
    """Random ones; ties, zeros with signs, rows of -inf and of what is no number."""
    logits = torch.randn(count, columns)
    logits[1::3] = logits[1::3].round()
    logits[4::8], logits[4::8, 0], logits[4::8, -1] = -1.0, -0.0, 0.0
    logits[5::8] = -torch.inf
    logits[6::16, columns // 2] = torch.nan
    logits[7::8] *= 1e30
    return logits


def best_of(
    ranks: StreamRanks, parts: list[Tensor], found: list[Tensor], status: list[Tensor], rank: int
) -> None:
    first = rank * parts[0].shape[1]
    ops.best_token(parts[rank], found[rank], status[rank], first, *ranks.among(rank))


@every_size
def test_best_tokens_are_those_of_all_columns(size: int) -> None:
    ranks, columns = StreamRanks(size, CAPACITY), 40 * size
    for count in (1, 5, 64, 700):
        logits = rows_of_logits(count, columns)
        parts = [part.contiguous() for part in logits.chunk(size, dim=1)]
        # As `sample` says it; of a row with something broken every rank says so.
        broken = logits.isnan().any(dim=1)
        found = [part.nan_to_num(-torch.inf).argmax(dim=1).int() for part in parts]
        banned = [(part == -torch.inf).all(dim=1) for part in parts]
        status = [torch.where(broken, 1, 2 * each).to(torch.int8) for each in banned]
        with kernel_runs("best_token", size):
            ranks.run(partial(best_of, ranks, parts, found, status))
        none = (logits == -torch.inf).all(dim=1)
        right = torch.where(broken | none, 0, logits.nan_to_num(-torch.inf).argmax(dim=1)).int()
        for rank in range(size):
            assert status[rank].tolist() == torch.where(broken, 1, 2 * none).tolist()
            assert found[rank].tolist() == right.tolist()


def test_sums_and_best_tokens_follow_each_other() -> None:
    ranks, rounds = StreamRanks(2, CAPACITY), 40
    logits = [torch.randn(rounds, 33, 64) for _ in range(2)]
    tokens = [each.argmax(dim=2).int() for each in logits]
    status = [torch.zeros(rounds, 33, dtype=torch.int8) for _ in range(2)]
    x = [torch.ones(rounds, 9, 512).bfloat16() for _ in range(2)]

    def work(rank: int) -> None:
        for turn in range(rounds):
            ops.all_reduce(x[rank][turn], *ranks.among(rank))
            own = logits[rank][turn], tokens[rank][turn], status[rank][turn]
            ops.best_token(*own, 64 * rank, *ranks.among(rank))

    ranks.run(work)
    right = torch.cat(logits, dim=2).argmax(dim=2)
    for rank in range(2):
        assert torch.equal(tokens[rank].long(), right)
        assert (x[rank] == 2).all()
