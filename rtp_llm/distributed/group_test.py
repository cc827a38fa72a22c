# SPDX-License-Identifier: Apache-2.0
"""Tests of process groups over gloo, in processes of their own."""

from __future__ import annotations

import datetime
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch.distributed.distributed_c10d import _set_pg_timeout

from rtp_llm.device.cpu import CpuDevice
from rtp_llm.distributed import world as world_module
from rtp_llm.distributed.group import Group
from rtp_llm.distributed.membership import RENDEZVOUS_VARIABLE, Membership
from rtp_llm.distributed.world import World
from rtp_llm.testing.ranks import run_ranks

SHORT = datetime.timedelta(seconds=1)


def _collectives(world):
    rank, size, group = world.rank, world.size, world.tensors
    total, maxima = torch.tensor([rank, 1]), torch.tensor([rank, -rank])
    group.sum(total)
    group.maximum(maxima)
    named = torch.full((2,), rank)
    group.broadcast(named, source=size - 1)
    # Rank r sends d + 1 rows of the number 10 * r + d to rank d.
    sent = [d + 1 for d in range(size)]
    rows = torch.cat([torch.full((d + 1, 3), 10.0 * rank + d) for d in range(size)])
    ragged = group.all_to_all(rows, sent, [rank + 1] * size)
    even = group.all_to_all(torch.arange(size, dtype=torch.uint8)[:, None] + 10 * rank)
    nothing = group.all_to_all(torch.empty(0, 3), [0] * size, [0] * size)
    left, right = (rank - 1) % size, (rank + 1) % size
    first, second = torch.empty(2), torch.empty(3)
    world.moves.exchange(
        [(right, torch.full((2,), float(rank))), (right, torch.full((3,), rank + 0.5))],
        [(left, first), (left, second)],
    )
    parts = (total, maxima, named, ragged[:, 0], even[:, 0], first, second)
    return [part.tolist() for part in parts], nothing.shape[0]


def test_collectives(tmp_path):
    size = 3
    for rank, (parts, none) in enumerate(run_ranks(tmp_path, size, _collectives)):
        total, maxima, named, ragged, even, first, second = parts
        assert total == [size * (size - 1) // 2, size]
        assert maxima == [size - 1, 0]
        assert named == [size - 1] * 2
        assert ragged == [10.0 * r + rank for r in range(size) for _ in range(rank + 1)]
        assert even == [10 * r + rank for r in range(size)]
        assert (first, second) == ([(rank - 1) % size] * 2, [(rank - 1) % size + 0.5] * 3)
        assert none == 0


def _gathered(world):
    tensors = world.tensors.all_gather(torch.full((2, 3), float(world.rank)))
    return tensors.tolist(), world.host.gather({"rank": world.rank, "name": b"x" * world.rank})


def test_gathering(tmp_path):
    size = 3
    for tensors, values in run_ranks(tmp_path, size, _gathered):
        assert tensors == [[float(rank)] * 3 for rank in range(size) for _ in range(2)]
        assert values == [{"rank": rank, "name": b"x" * rank} for rank in range(size)]


def _connected(_, place):
    """What a device needs of the environment, and what is done before a graph can be captured."""
    done = []

    class Device(CpuDevice):
        collectives_environment = {"RTP_LLM_TEST_SET": "1", "RTP_LLM_TEST_NEW": "1"}

        def synchronize(self):
            done.append("synchronize")

    class Recording(Group):
        def sum(self, tensor):
            done.append("sum")
            super().sum(tensor)

        def all_gather(self, tensor):
            done.append("all_gather")
            return super().all_gather(tensor)

    os.environ["RTP_LLM_TEST_SET"] = "0"
    world_module.Group = Recording
    World.connect(Membership(0, 1, place), Device(), 60.0).close()
    return os.environ["RTP_LLM_TEST_SET"], os.environ["RTP_LLM_TEST_NEW"], done


def test_collectives_are_ready_for_graphs_once_ranks_have_met(tmp_path):
    ((was_set, new, done),) = run_ranks(
        tmp_path, 1, _connected, str(tmp_path / "own"), connect=False
    )
    assert (was_set, new) == ("0", "1"), "the user's own value stays"
    assert sorted(done) == ["all_gather", "sum", "synchronize"]
    assert done[-1] == "synchronize"


def _rank_one_dies(world):
    world.host.wait_for_all()
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    world.tensors.sum(torch.zeros(4))


def test_a_dead_rank_ends_the_others_with_a_message(tmp_path):
    # Nobody waits for so long here: they notice it at once.
    zero, one, two = run_ranks(tmp_path, 3, _rank_one_dies, timeout=3600.0)
    assert one is None
    for rank, text in ((0, zero), (2, two)):
        assert text.startswith(f"RankLostError: rank {rank} of 3 lost contact to another rank")


def _rank_one_hangs(world, given_up):
    if world.rank == 1:
        while not given_up.exists():
            time.sleep(0.05)
        return "late"
    # Ranks may be late to meet on a busy machine; only what they do then has little time.
    _set_pg_timeout(SHORT, world.tensors._handle)
    try:
        world.tensors.sum(torch.zeros(4))
    finally:
        given_up.touch()
    return "sum"


def test_a_rank_that_hangs_is_given_up_after_the_time_out(tmp_path):
    zero, _ = run_ranks(tmp_path, 2, _rank_one_hangs, tmp_path / "given_up")
    (seconds,) = re.findall(r"lost contact to another rank in a sum after ([\d.]+) s", zero)
    assert float(seconds) >= SHORT.total_seconds()


def test_a_rank_that_does_not_come_is_named_by_the_time_out(tmp_path):
    code = (
        "import os, sys\n"
        "from rtp_llm.device.cpu import CpuDevice\n"
        "from rtp_llm.distributed.membership import Membership\n"
        "from rtp_llm.distributed.world import World\n"
        "World.connect(Membership.read(os.environ), CpuDevice(), 1.0)\n"
    )
    alone = Membership(0, 2, str(tmp_path / "meet"))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **alone.environment()},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "rank 0 of 2: not all ranks came together within 1 s" in done.stderr


def test_a_membership_travels_through_the_environment():
    member = Membership(1, 4, "/tmp/meet")
    assert Membership.read(member.environment()) == member
    assert Membership.read({"RANK": "1", "WORLD_SIZE": "4"}) is None
    with pytest.raises(ValueError, match="WORLD_SIZE is not"):
        Membership.read({RENDEZVOUS_VARIABLE: "x", "RANK": "0"})
    with pytest.raises(ValueError, match="RANK=4 is not below WORLD_SIZE=4"):
        Membership(4, 4, "x")
