# SPDX-License-Identifier: Apache-2.0
"""Which dispatch mode a step takes: the same one on every rank."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.distributed.dispatch import (
    AllToAll,
    LowLatencyAllToAll,
    NormalAllToAll,
    WidestAllToAll,
)
from rtp_llm.distributed.group import Group
from rtp_llm.distributed.symmetric_dispatch import SymmetricAllToAll, SymmetricDispatch
from rtp_llm.distributed.world import World


class _Echo(Group):
    """Returns to this rank what it sends: the same work, but no other rank takes part."""

    def all_to_all(self, tensor: Tensor, *_: object) -> Tensor:
        return tensor.clone()


class DispatchModes:
    """The all-to-all of the running step, shared by all layers with experts.

    If ranks can write into each other's memory and it has room for the step, they do. Otherwise, if
    no rank has more than `limit` tokens, messages have a fixed size, and nobody waits for the
    device; above the limit fixed sizes would move and compute too much padding, so exact sizes are
    used. The trial steps that measure memory, before the first step that ranks agree on, bring each
    rank as much as any choice of experts could.
    """

    def __init__(
        self, world: World, slots: int, limit: int, direct: SymmetricDispatch | None = None
    ) -> None:
        """`slots` experts on each rank."""
        self._world, self._slots, self._limit, self._direct = world, slots, limit, direct
        self._exact = NormalAllToAll(world.tensors, world.host, slots)
        self._echo = _Echo(None, world.rank, world.size)
        self.current: AllToAll = WidestAllToAll(world.tensors, world.host, slots)

    def begin(self, tokens: int) -> None:
        """Begin a step in which, as all ranks agreed, no rank has more than `tokens` tokens."""
        if direct := self._direct_mode(tokens):
            self.current = direct
        elif 0 < tokens <= self._limit:
            self.current = LowLatencyAllToAll(self._world.tensors, self._slots, tokens)
        else:
            self.current = self._exact

    def fix(self, tokens: int, alone: bool) -> None:
        """Size the messages for steps of `tokens` rows; `alone`: without the other ranks."""
        group = self._echo if alone else self._world.tensors
        direct = None if alone else self._direct_mode(tokens)
        self.current = direct or LowLatencyAllToAll(group, self._slots, tokens)

    def _direct_mode(self, tokens: int) -> AllToAll | None:
        if self._direct is None or not 0 < tokens <= self._direct.max_tokens:
            return None
        return SymmetricAllToAll(self._world.tensors, self._slots, tokens, self._direct.memory)

    def abort(self) -> None:
        """Another rank is gone: end kernels that wait for it; their results are invalid.

        May be called from any thread. Backends of groups end their own waits.
        """
        if self._direct is not None:
            self._direct.memory.abort()
