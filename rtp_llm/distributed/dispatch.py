# SPDX-License-Identifier: Apache-2.0
"""All-to-all among the ranks of experts: dispatch of tokens, combination of results; two modes.

A third one needs GPUs that write into each other's memory: symmetric_dispatch.py.

A token goes to each rank that holds any of its experts once, with all its choices; what comes back
is that rank's share of the weighted sum. A rank without a token takes part all the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from rtp_llm.distributed.group import Group
from rtp_llm.distributed.rows import TokenRows


class CapacityError(RuntimeError):
    """A rank has more tokens than the ranks agreed on; tokens are never dropped."""

    def __init__(self, rank: int, tokens: int, capacity: int) -> None:
        super().__init__(
            f"rank {rank} has {tokens} tokens for experts, more than the agreed capacity of "
            f"{capacity} tokens a rank"
        )


@dataclass(frozen=True)
class Sent:
    """What a rank must remember until the results are back."""

    tokens: int
    hidden: int


class AllToAll(ABC):
    """One mode of dispatch and combine among the ranks of `group`, `slots` experts on each."""

    def __init__(self, group: Group, slots: int) -> None:
        self._group = group
        self._slots = slots

    @abstractmethod
    def dispatch(self, rows: TokenRows) -> tuple[TokenRows, Sent]:
        """Send this rank's tokens with physical expert ids; return the tokens for this rank's
        experts, with ids that are local slots, or -1 where another rank has the expert."""

    @abstractmethod
    def combine(self, results: Tensor, sent: Sent) -> Tensor:
        """Results [N', H] for the dispatched tokens, in their order -> sums over ranks [T, H]."""

    def _wanted(self, ids: Tensor) -> Tensor:
        """Whether a token has an expert on a rank, bool [T, ranks]. Ids of -1 have none."""
        owners = torch.div(ids, self._slots, rounding_mode="floor")
        ranks = torch.arange(self._group.size, dtype=ids.dtype, device=ids.device)
        return (owners[:, :, None] == ranks).any(1)

    def _received(self, message: Tensor, like: TokenRows) -> TokenRows:
        """The rows of a message, with ids as slots of this rank."""
        rows = TokenRows.unpack(message, like.x.shape[1], like.x.dtype, like.ids.shape[1])
        first = self._group.rank * self._slots
        mine = (rows.ids >= first) & (rows.ids < first + self._slots)
        return TokenRows(rows.x, torch.where(mine, rows.ids - first, -1), rows.weights)


@dataclass(frozen=True)
class _SentExactly(Sent):
    places: Tensor  # int64 [N], the token of each row that was sent, by rank
    counts: list[int]  # rows to each rank
    received: list[int]  # rows from each rank


class NormalAllToAll(AllToAll):
    """Messages of exact size; the host waits for the device to know the sizes."""

    def __init__(self, group: Group, host: Group, slots: int) -> None:
        """`host` carries the sizes."""
        super().__init__(group, slots)
        self._host = host

    def dispatch(self, rows: TokenRows) -> tuple[TokenRows, Sent]:
        by_rank, places = self._wanted(rows.ids).t().nonzero(as_tuple=True)
        counts = torch.bincount(by_rank, minlength=self._group.size).cpu()
        received = self._host.all_to_all(counts)
        tokens, hidden = rows.x.shape
        sent = _SentExactly(tokens, hidden, places, counts.tolist(), received.tolist())
        message = rows.pack().index_select(0, places)
        message = self._group.all_to_all(message, sent.counts, sent.received)
        return self._received(message, rows), sent

    def combine(self, results: Tensor, sent: Sent) -> Tensor:
        assert isinstance(sent, _SentExactly)
        back = self._group.all_to_all(results.contiguous(), sent.received, sent.counts)
        total = torch.zeros(sent.tokens, sent.hidden, dtype=torch.float32, device=back.device)
        start = 0
        for count in sent.counts:
            # One rank after the other, and a token once in each: the order of the sum is fixed.
            part = slice(start, start + count)
            total.index_add_(0, sent.places[part], back[part].float())
            start += count
        return total.to(results.dtype)


class WidestAllToAll(NormalAllToAll):
    """Every token goes to every rank, whether or not it has its experts; the sums are the same.

    A rank gets this many rows only if the tokens of all ranks choose its experts: no step with as
    many tokens can bring more.
    """

    def _wanted(self, ids: Tensor) -> Tensor:
        return torch.ones(len(ids), self._group.size, dtype=torch.bool, device=ids.device)


@dataclass(frozen=True)
class _SentPadded(Sent):
    places: Tensor  # int64 [T, ranks], the row of the message, or one past its end


class LowLatencyAllToAll(AllToAll):
    """Messages of `capacity` rows for each rank, full or not: the host never waits.

    If every rank has at most `capacity` tokens, none can be left out, since a token goes to a rank
    only once.
    """

    def __init__(self, group: Group, slots: int, capacity: int) -> None:
        """`capacity` >= 1: the same number on every rank, the most tokens that any of them has."""
        super().__init__(group, slots)
        self._capacity = capacity

    def dispatch(self, rows: TokenRows) -> tuple[TokenRows, Sent]:
        tokens, size, capacity = len(rows.x), self._group.size, self._capacity
        if tokens > capacity:
            raise CapacityError(self._group.rank, tokens, capacity)
        wanted = self._wanted(rows.ids)
        starts = torch.arange(size, device=wanted.device) * capacity
        places = torch.where(wanted, wanted.cumsum(0) - 1 + starts, size * capacity)
        # For each row of the message its token; the last token is a row of zeros.
        sources = torch.full((size * capacity + 1,), tokens, device=wanted.device)
        numbers = torch.arange(tokens, device=wanted.device)[:, None].expand(tokens, size)
        sources.scatter_(0, places.reshape(-1), numbers.reshape(-1))
        packed = rows.pack()
        packed = torch.cat([packed, packed.new_zeros(1, packed.shape[1])])
        message = self._group.all_to_all(packed.index_select(0, sources[:-1]))
        return self._received(message, rows), _SentPadded(tokens, rows.x.shape[1], places)

    def combine(self, results: Tensor, sent: Sent) -> Tensor:
        assert isinstance(sent, _SentPadded)
        back = self._group.all_to_all(results.contiguous())
        there = sent.places < len(back)
        parts = back[sent.places.clamp(max=len(back) - 1)].float()  # [T, ranks, H]
        return parts.where(there[:, :, None], 0.0).sum(1).to(results.dtype)
