# SPDX-License-Identifier: Apache-2.0
"""Which steps ranks exchange by themselves, what with, and who does the others."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from rtp_llm import ops
from rtp_llm.device import resolve_device
from rtp_llm.distributed.dispatch import (
    CapacityError,
    LowLatencyAllToAll,
    NormalAllToAll,
    WidestAllToAll,
)
from rtp_llm.distributed.dispatch_modes import DispatchModes
from rtp_llm.distributed.peer_memory import PeerMemory
from rtp_llm.distributed.symmetric_dispatch import (
    SymmetricAllToAll,
    SymmetricDispatch,
    TokenLayout,
    explain_dispatch,
)
from rtp_llm.testing.distributed.all_to_all import HIDDEN, tokens_of
from rtp_llm.testing.ranks import run_ranks

SLOTS = 12


def memory_of(size: int) -> tuple[PeerMemory, torch.Tensor]:
    """Without a device; and the word that ends waits."""
    word = torch.zeros(1, dtype=torch.int32)
    return PeerMemory(0, torch.zeros(size + 1, dtype=torch.int64), 1 << 20, word), word


@pytest.fixture
def modes() -> DispatchModes:
    world = SimpleNamespace(rank=0, size=2, tensors=SimpleNamespace(rank=0, size=2), host=None)
    memory, _ = memory_of(2)
    return DispatchModes(world, SLOTS, 200, SymmetricDispatch(memory, 100))


@pytest.mark.parametrize(
    ("tokens", "kind"),
    [
        (1, SymmetricAllToAll),
        (100, SymmetricAllToAll),
        (101, LowLatencyAllToAll),
        (201, NormalAllToAll),
    ],
)
def test_steps_that_fit_are_exchanged_directly(modes, tokens, kind):
    assert type(modes.current) is WidestAllToAll, "a trial step"
    modes.begin(tokens)
    assert type(modes.current) is kind


def test_graphs_are_captured_with_direct_exchanges_but_tried_without(modes):
    for tokens, alone, kind in (
        (8, False, SymmetricAllToAll),
        (8, True, LowLatencyAllToAll),
        (101, False, LowLatencyAllToAll),
    ):
        modes.fix(tokens, alone)
        assert type(modes.current) is kind


def test_the_host_can_end_waits():
    memory, word = memory_of(2)
    world = SimpleNamespace(rank=0, size=2, tensors=None, host=None)
    DispatchModes(world, SLOTS, 0, SymmetricDispatch(memory, 8)).abort()
    assert word.item() == 1
    DispatchModes(world, SLOTS, 0).abort()


def test_what_is_sent_comes_back_as_experts_made_it():
    memory, _ = memory_of(1)
    rows = tokens_of(0, 3, 2, torch.float32, 2)
    mode = SymmetricAllToAll(SimpleNamespace(rank=0, size=1), SLOTS, 4, memory)
    ops.allow_reference_ops(True)
    try:
        there, sent = mode.dispatch(rows)
        assert (len(there.x), there.ids[:3].tolist()) == (4, rows.ids.tolist())
        assert torch.equal(mode.combine(2 * there.x, sent), 2 * rows.x)
    finally:
        ops.allow_reference_ops(False)
    with pytest.raises(CapacityError, match=r"rank 0 has 5 tokens .* capacity of 4"):
        mode.dispatch(tokens_of(0, 5, 2, torch.float32, 0))


def test_the_buffers_of_all_sizes_are_as_large():
    layout = TokenLayout(2048, torch.bfloat16, 8)
    assert layout.max_tokens(2) == ((256 << 20) // 6 - 16) // (4096 + 64)
    assert layout.max_tokens(8) == ((256 << 20) // 24 - 16) // (4096 + 64)


def test_what_kernels_cannot_send_is_named():
    assert TokenLayout(2048, torch.bfloat16, 8).check()
    for layout in (
        TokenLayout(12, torch.bfloat16, 8),
        TokenLayout(2048, torch.float64, 8),
        TokenLayout(2048, torch.bfloat16, 65),
    ):
        assert (
            f"rows of {layout.hidden} {layout.dtype} with {layout.k} experts"
            in layout.check().reason
        )


def test_it_is_said_why_not():
    reason = "there is no kernel for cpu"
    assert explain_dispatch(resolve_device("cpu"), 2) == f"to experts and back by gloo; {reason}"


def _refused(world):
    layout = TokenLayout(HIDDEN, torch.float32, 2)
    return SymmetricDispatch.connect(world.tensors, resolve_device("cpu"), layout, 8)


def test_ranks_agree_that_they_cannot(tmp_path):
    assert run_ranks(tmp_path, 2, _refused) == [None] * 2
