# SPDX-License-Identifier: Apache-2.0
"""Logits with columns divided among ranks, and how the ranks arrive at the same tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.ops.sampling.sampling import ALL_BANNED, LEAST_LOGPROB, NOT_FINITE, SAMPLED

if TYPE_CHECKING:
    from rtp_llm.distributed.tensor_parallel import TensorParallel
    from rtp_llm.models.causal_lm import CausalLM
    from rtp_llm.worker.heads.slot_settings import RowSettings

_LOW = 0x7FFFFFFF
_BROKEN = torch.iinfo(torch.int64).max
# Keys of rows without a finite logit are below this.
_LEAST_FINITE = -(0x7F800000 << 32)


class LogitShards:
    """The logits of several ``ranks``, all of which call the same methods in the same order."""

    def __init__(self, model: CausalLM, ranks: TensorParallel, device: torch.device) -> None:
        assert ranks.group is not None, "one rank has all of them"
        self._model, self._group, self._direct = model, ranks.group, ranks.direct
        columns = model.logit_columns
        self._first, self._count = columns.start, len(columns)
        width = torch.tensor([self._count, -self._count], device=device)
        self._group.maximum(width)
        self._width, least = width.tolist()  # of all ranks but the last, which may have fewer
        self.least_columns = -least  # of any rank

    def gather(self, logits: Tensor) -> Tensor:
        """Gather this rank's columns, float32 [R, columns], into [R, vocabulary] on every rank."""
        return self._model.gather_logits(logits)

    def share(self, tokens: Tensor) -> None:
        """Replace ``tokens`` int32 [R] by rank 0's; only rank 0 knows what its host adds."""
        self._group.broadcast(tokens)

    def best(self, logits: Tensor, settings: RowSettings) -> tuple[Tensor, Tensor]:
        """Tokens and status of `sample` for rows that all take the arg max (``settings``), from
        this rank's columns float32 [R, columns]; sends 8 or 16 bytes per row."""
        tokens, status = ops.sample(
            logits,
            settings.temperature,
            settings.top_k,
            settings.top_p,
            settings.min_p,
            settings.seeds,
            settings.seeds,
        )
        if self._direct is not None:
            self._direct.best_token(logits, tokens, status, self._first)
            return tokens, status
        keys = _keys(logits, tokens, status, self._first)
        self._group.maximum(keys)
        status = torch.where(keys < _LEAST_FINITE, ALL_BANNED, SAMPLED)
        status = torch.where(keys == _BROKEN, NOT_FINITE, status).to(torch.int8)
        tokens = torch.where(status == SAMPLED, _LOW - (keys & _LOW), 0)
        return tokens.int(), status

    def sample(self, logits: Tensor, settings: RowSettings, steps: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and status of `sample`, from this rank's columns float32 [R, columns]. Each rank
        gets all columns of some of the rows, and sends their tokens to the others."""
        group, rows = self._group, len(logits)
        part = -(-rows // group.size)
        first, last = (min(rows, part * (group.rank + number)) for number in (0, 1))
        mine = self._divide(logits, part)[: last - first]
        sampled = mine.new_zeros(part, 2, dtype=torch.int32)
        if last > first:
            own = [
                column[first:last]
                for column in (
                    settings.temperature,
                    settings.top_k,
                    settings.top_p,
                    settings.min_p,
                    settings.seeds,
                    steps,
                )
            ]
            tokens, status = ops.sample(mine, *own)
            sampled[: last - first, 0], sampled[: last - first, 1] = tokens, status
        tokens, status = group.all_gather(sampled)[:rows].unbind(1)
        return tokens.contiguous(), status.to(torch.int8)

    def top_logprobs(self, logits: Tensor, tokens: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Like the operator `top_logprobs`, from this rank's columns float32 [R, columns]; k is at
        most `least_columns`. Sends 8 (k + 1) bytes per row."""
        finite = torch.where(logits.isfinite(), logits, -torch.inf)
        own = tokens.long() - self._first
        is_here = (own >= 0) & (own < self._count)
        chosen = finite.gather(1, own.clamp(0, self._count - 1)[:, None])
        _, _, ids = ops.top_logprobs(logits, tokens, k)
        parts = (
            finite.logsumexp(1, keepdim=True),
            torch.where(is_here[:, None], chosen, -torch.inf),
            finite.gather(1, ids.long()),
            (ids + self._first).view(torch.float32),  # bits
        )
        everyone = self._group.all_gather(torch.cat(parts, 1)).view(self._group.size, -1, 2 + 2 * k)
        sums, chosen, values, bits = torch.split(everyone, [1, 1, k, k], 2)
        total = sums.double().logsumexp(0)
        # Ranks have their columns in order, and their best ones with the lowest first among equals.
        values, order = values.transpose(0, 1).flatten(1).sort(dim=1, descending=True, stable=True)
        ids = bits.contiguous().view(torch.int32).transpose(0, 1).flatten(1).gather(1, order)
        scores = torch.cat([chosen.amax(0), values[:, :k]], 1).double() - total
        scores = scores.nan_to_num_(nan=LEAST_LOGPROB).clamp_(min=LEAST_LOGPROB).float()
        return scores[:, 0], scores[:, 1:], ids[:, :k]

    def _divide(self, logits: Tensor, part: int) -> Tensor:
        """Columns float32 [R, columns] of all rows -> all columns [part, vocabulary] of this rank's
        rows, the last of which only pad."""
        size, width = self._group.size, self._width
        missing = width - self._count, size * part - len(logits)
        if any(missing):
            logits = torch.nn.functional.pad(logits, (0, missing[0], 0, missing[1]))
        received = self._group.all_to_all(logits.contiguous()).view(size, part, width)
        whole = received.transpose(0, 1).reshape(part, size * width)
        return whole[:, : self._model.config.vocab_size]


def _keys(logits: Tensor, tokens: Tensor, status: Tensor, first: int) -> Tensor:
    """Sort keys int64 [R], the largest of which wins: the best logit, then the lowest column. A row
    that is broken on one rank is broken on all."""
    values = logits.gather(1, tokens.long()[:, None])[:, 0] + 0.0  # one zero, not two
    bits = values.view(torch.int32)
    # As integers negative floats are in reverse order.
    ordered = torch.where(bits < 0, bits ^ _LOW, bits).long()
    keys = (ordered << 32) | (_LOW - first - tokens.long())
    return torch.where(status == NOT_FINITE, _BROKEN, keys)
