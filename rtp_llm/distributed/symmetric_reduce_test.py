# SPDX-License-Identifier: Apache-2.0
"""Which sums ranks make by themselves, and what becomes of the others."""

from __future__ import annotations

import pytest
import torch

from rtp_llm import ops
from rtp_llm.device import resolve_device
from rtp_llm.distributed.group import Group
from rtp_llm.distributed.peer_memory import NoPeerMemoryError, PeerMemory
from rtp_llm.distributed.symmetric_reduce import (
    SymmetricReduce,
    direct_sums,
    explain_sums,
    limit_of,
)
from rtp_llm.distributed.tensor_parallel import SINGLE, TensorParallel
from rtp_llm.ops.fp8.fp8_norm_reference import norm_fp8_reference
from rtp_llm.testing.ranks import run_ranks

CPU = torch.device("cpu")


class Twins(Group):
    """Two ranks with equal parts, summed by the group's backend."""

    def __init__(self) -> None:
        self.rank, self.size, self.sums = 0, 2, 0

    def all_reduce(self, tensor: torch.Tensor) -> None:
        self.sums += 1
        tensor.mul_(2)


class DirectTwins(SymmetricReduce):
    """The same, without a device."""

    def __init__(self, capacity: int) -> None:
        word = torch.zeros(1, dtype=torch.int32)
        memory = PeerMemory(0, torch.zeros(3, dtype=torch.int64), capacity, word)
        super().__init__(memory, capacity)
        self.word, self.calls = word, list[str]()

    def all_reduce(self, x: torch.Tensor) -> None:
        self.calls.append("sum")
        x.mul_(2)

    def all_reduce_add_rms_norm(self, x, residual, weight, eps, norm_offset) -> None:
        self.calls.append("norm")
        ops.fused_add_rms_norm(x.mul_(2), residual, weight, eps, norm_offset)

    def all_reduce_add_rms_norm_fp8(self, x, residual, weight, eps, norm_offset):
        self.calls.append("fp8")
        return norm_fp8_reference(residual, 2 * x, weight, eps, norm_offset)


@pytest.fixture
def direct() -> DirectTwins:
    return DirectTwins(4096)


def test_small_contiguous_rows_of_16_bytes_are_taken(direct):
    assert direct.takes(torch.zeros(8, 128))
    assert direct.takes(torch.zeros(8, 128).bfloat16(), torch.zeros(8, 128).bfloat16())
    assert not direct.takes(torch.zeros(8, 132)), "above the capacity"
    assert not direct.takes(torch.zeros(8, 4).bfloat16())
    assert not direct.takes(torch.zeros(8, 128, dtype=torch.int32))
    assert not direct.takes(torch.zeros(8, 256).bfloat16()[:, :128])
    assert not direct.takes(torch.zeros(8, 8), torch.zeros(8, 16)[:, :8])
    assert not direct.takes(torch.zeros(0, 8)) and not direct.takes(torch.tensor(1.0))


def test_what_is_not_taken_is_summed_by_the_group(direct):
    twins = Twins()
    ranks = TensorParallel(0, 2, twins, direct)
    assert torch.equal(ranks.all_reduce(torch.ones(2, 8)), torch.full((2, 8), 2.0))
    assert (direct.calls, twins.sums) == (["sum"], 0)
    assert torch.equal(ranks.all_reduce(torch.ones(2, 2048)), torch.full((2, 2048), 2.0))
    assert (direct.calls, twins.sums) == (["sum"], 1)
    torch.manual_seed(0)
    for rows, last in ((2, "norm"), (200, "sum")):
        part, residual, weight = torch.randn(rows, 16), torch.randn(rows, 16), torch.randn(16)
        x, added = part * 2, residual.clone()
        ops.fused_add_rms_norm(x, added, weight, 1e-6, 1.0)
        assert torch.equal(ranks.add_rms_norm(part, residual, weight, 1e-6, 1.0), x)
        assert torch.equal(residual, added)
        assert direct.calls == ["sum", "norm"] and twins.sums == (1 if last == "norm" else 2)


def test_a_quantised_norm_has_the_sum_in_it_where_that_is_taken_at_once(direct, monkeypatch):
    monkeypatch.setattr(ops, "norm_fp8", norm_fp8_reference)
    twins = Twins()
    ranks = TensorParallel(0, 2, twins, direct)
    for rows, (calls, sums) in {16: (["fp8"], 0), 17: (["fp8"], 1)}.items():
        part, residual = torch.randn(2, rows, 128).bfloat16().unbind()
        weight, added = torch.randn(128).bfloat16(), residual.clone()
        expected = norm_fp8_reference(added, 2 * part, weight, 1e-6, 1.0)
        given = ranks.add_rms_norm_fp8(part, residual, weight, 1e-6, 1.0)
        assert torch.equal(given[0].float(), expected[0].float())
        assert torch.equal(given[1], expected[1]) and torch.equal(residual, added)
        assert (direct.calls, twins.sums) == (calls, sums)
    # What a call does not hold is summed in pieces, all of which one norm needs.
    small = SymmetricReduce(PeerMemory(0, torch.zeros(3), 4096, direct.word), 1 << 20)
    wide = torch.zeros(17, 128).bfloat16()
    assert small.takes(wide) and not small.takes_at_once(wide) and small.takes_at_once(wide[:16])


@pytest.mark.parametrize("rows", [1, 8, 9, 40])
def test_large_sums_are_made_in_chunks(monkeypatch, rows):
    """Every number once, and no chunk larger than what a call takes."""
    sizes = []

    def norm(x, residual, *rest, two_shot):
        assert not two_shot
        sizes.append(x.nbytes)
        residual.add_(x.mul_(2))

    def plain(x, *rest, two_shot):
        assert not two_shot
        sizes.append(x.mul_(2).nbytes)

    monkeypatch.setattr(ops, "all_reduce", plain)
    monkeypatch.setattr(ops, "all_reduce_add_rms_norm", norm)
    word = torch.zeros(1, dtype=torch.int32)
    direct = SymmetricReduce(PeerMemory(0, torch.zeros(3), 4096, word), 1 << 20)
    x, residual = torch.randn(rows, 128), torch.randn(rows, 128)
    assert direct.takes(x, residual)
    sums, added = x.clone(), residual.clone()
    direct.all_reduce(sums)
    assert torch.equal(sums, 2 * x) and max(sizes) <= 4096 and sum(sizes) == x.nbytes
    sizes.clear()
    direct.all_reduce_add_rms_norm(x.clone(), added, torch.ones(128), 1e-6, 0.0)
    assert torch.equal(added, residual + 2 * x) and max(sizes) <= 4096 and sum(sizes) == x.nbytes


@pytest.mark.parametrize(
    ("rows", "calls"),
    [
        (7, [(7, False)]),
        (8, [(8, True)]),
        (16, [(16, True)]),
        (33, [(16, True), (16, True), (1, False)]),
        (42, [(16, True), (16, True), (10, True)]),
    ],
)
def test_of_many_ranks_large_sums_are_made_in_two_shots(monkeypatch, rows, calls):
    """A slice of a row is in the buffers twice: of four ranks 16 rows fit where one shot has 8."""
    sizes: list[tuple[int, bool]] = []

    def norm(x, residual, *rest, two_shot):
        sizes.append((len(x), two_shot))
        residual.add_(x.mul_(4))

    def plain(x, *rest, two_shot):
        sizes.append((x.mul_(4).nbytes // 512, two_shot))

    monkeypatch.setattr(ops, "all_reduce", plain)
    monkeypatch.setattr(ops, "all_reduce_add_rms_norm", norm)
    memory = PeerMemory(0, torch.zeros(5), 4096, torch.zeros(1, dtype=torch.int32))
    direct = SymmetricReduce(memory, 1 << 20, two_shots_from=4096)
    x, residual = torch.randn(rows, 128), torch.randn(rows, 128)
    sums, added = x.clone(), residual.clone()
    assert direct.takes(x, residual) and direct.takes_at_once(x) == (len(calls) == 1)
    direct.all_reduce_add_rms_norm(x.clone(), added, torch.ones(128), 1e-6, 0.0)
    assert torch.equal(added, residual + 4 * x) and sizes == calls
    sizes.clear()
    direct.all_reduce(sums)
    assert torch.equal(sums, 4 * x) and sizes == calls
    # Fewer rows than ranks, or rows of which four slices do not fit.
    assert direct.in_two_shots(torch.zeros(8, 128))
    for wide in (torch.zeros(3, 2048), torch.zeros(8, 256)):
        assert not direct.in_two_shots(wide)


def test_the_host_can_end_waits(direct):
    TensorParallel(0, 2, Twins(), direct).abort()
    assert direct.word.item() == 1
    SINGLE.abort()


def test_limits_are_of_a_device_and_a_number_of_ranks():
    assert limit_of("cuda:0 (NVIDIA H200, 140 GiB)", 2) >= limit_of("cuda:0 (NVIDIA H200)", 8)
    assert limit_of("cuda:0 (NVIDIA L4, 22 GiB)", 2) > 0
    assert limit_of("cuda:0 (NVIDIA H200)", 3) == limit_of("cuda:0 (NVIDIA L4, 22 GiB)", 2)
    for size in (2, 4, 8):
        assert limit_of("cuda:0 (NVIDIA H100 80GB HBM3, 79 GiB)", size) % 16 == 0


def test_it_is_said_why_not():
    cpu = resolve_device("cpu")
    assert direct_sums(cpu, 2).reason == "there is no kernel for cpu"
    assert direct_sums(cpu, 9).reason == "9 ranks; the kernels are for at most 8"
    assert explain_sums(cpu, 2) == "all by gloo; there is no kernel for cpu"


def _refused(world):
    with pytest.raises(NoPeerMemoryError) as caught:
        SymmetricReduce.connect(world.tensors, resolve_device("cpu"))
    return str(caught.value)


def test_ranks_agree_that_they_cannot(tmp_path):
    assert run_ranks(tmp_path, 2, _refused) == ["there is no kernel for cpu"] * 2
