# SPDX-License-Identifier: Apache-2.0
"""Runs a model on sequences whose blocks are handed out here: parity tests without a scheduler."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rtp_llm.attention import CacheSpec, ForwardBatch, HostNumbers, RecurrentSpec
from rtp_llm.models.causal_lm import CausalLM


class ContiguousRunner:
    """Keeps `sequences` sequences of at most `max_tokens` tokens; each group has its own block ids.

    Block 0 is never used. With `shuffle` the blocks of a sequence lie in no order, and unused table
    entries are -1, so that a model that reads the wrong block gives wrong numbers: free blocks hold
    NaN. A recurrent state goes to another block every third step, as where one is published.
    """

    def __init__(
        self, model: CausalLM, sequences: int, max_tokens: int, block_size: int = 16
    ) -> None:
        cache = self._groups = model.cache_groups()
        self.model, self._size = model, block_size
        per_sequence = -(-max_tokens // block_size)
        blocks = 1 + sequences * per_sequence
        # Scales of weights may have another type than activations.
        norms = (each for name, each in model.named_parameters() if name.endswith("norm.weight"))
        dtype = next(norms).dtype
        generator = torch.Generator(torch.get_default_device()).manual_seed(7)
        self._tables = [
            1 + torch.randperm(blocks - 1, generator=generator).view(sequences, per_sequence)
            for _ in cache.groups
        ]
        self._caches = tuple(
            _nan(spec, max(blocks, 2 * sequences + 1), block_size, dtype) for spec in cache.specs
        )
        self._states = tuple(
            spec.states(layer) if isinstance(spec, RecurrentSpec) else ()
            for spec, layer in zip(cache.specs, self._caches, strict=True)
        )
        self._blocks = torch.full((sequences,), -1, dtype=torch.int32)
        self._lengths = [0] * sequences
        self._steps = 0

    @torch.inference_mode()
    def step(self, tokens: Sequence[Sequence[int]]) -> list[Tensor]:
        """Append tokens[i] to sequence i (possibly none) -> float32 logits [len(tokens[i]), V]."""
        hidden = self.model(self._batch(tokens))
        logits = self.model.gather_logits(self.model.compute_logits(hidden))
        return list(torch.split(logits, [len(new) for new in tokens]))

    def prefill(self, prompt: Sequence[int], chunk: int | None = None) -> Tensor:
        """All logits of `prompt` as sequence 0, `chunk` tokens at a time."""
        step = chunk or len(prompt)
        parts = [self.step([prompt[at : at + step]]) for at in range(0, len(prompt), step)]
        return torch.cat([part[0] for part in parts])

    @torch.inference_mode()
    def draft(self, tokens: Sequence[int], states: Tensor) -> Tensor:
        """Feed the draft head states [T, width] of sequence 0 and the tokens that follow them.

        Returns its float32 logits [T, V].
        """
        assert self.model.drafts is not None
        return self.model.drafts.logits(self.model.draft(self._batch([tokens]), states))

    def greedy(self, prompt: Sequence[int], count: int, chunk: int | None = None) -> list[int]:
        """The `count` most likely tokens after `prompt`, one by one, as sequence 0."""
        token = int(self.prefill(prompt, chunk)[-1].argmax())
        tokens = [token]
        while len(tokens) < count:
            token = int(self.step([[token]])[0][-1].argmax())
            tokens.append(token)
        return tokens

    def _batch(self, tokens: Sequence[Sequence[int]]) -> ForwardBatch:
        counts = [len(new) for new in tokens]
        read, write = self._state_blocks(counts)
        starts = list(self._lengths)
        positions = [torch.arange(at, at + n) for at, n in zip(starts, counts, strict=True)]
        self._lengths = [at + n for at, n in zip(starts, counts, strict=True)]
        return ForwardBatch(
            token_ids=_int32([token for new in tokens for token in new]),
            positions=torch.cat(positions).to(torch.int32),
            cu_seqlens_q=_int32([0, *torch.tensor(counts).cumsum(0).tolist()]),
            seq_lens=_int32(self._lengths),
            max_seqlen_q=max(counts),
            max_seqlen_k=max(self._lengths),
            slot_mapping=tuple(self._slots(table, positions) for table in self._tables),
            block_table=tuple(self._visible(table) for table in self._tables),
            kv_cache=self._caches,
            layer_group=self._groups.layer_group,
            host=self._host(counts),
            states=self._states,
            state_read=(read,) * len(self._tables),
            state_write=(write,) * len(self._tables),
        )

    def _state_blocks(self, counts: list[int]) -> tuple[Tensor, Tensor]:
        """The block each sequence's state is read from (-1: new), and the one it is written to."""
        read, first = self._blocks, 1 + 2 * torch.arange(len(counts), dtype=torch.int32)
        self._steps += 1
        moves = self._steps % 3 == 0
        other = 2 * first + 1 - read if moves else read
        runs = _int32(counts) > 0
        self._blocks = torch.where(runs, torch.where(read < 0, first, other), read)
        return read, self._blocks.clamp(min=0)

    def _host(self, counts: list[int]) -> HostNumbers:
        """Host numbers as the runner provides them, whatever the device of the tensors."""
        sums = np.cumsum([0, *counts]).astype(np.int32)
        tables = tuple(self._visible(table).cpu().numpy() for table in self._tables)
        return HostNumbers(sums, np.array(self._lengths, dtype=np.int32), tables)

    def _slots(self, table: Tensor, positions: list[Tensor]) -> Tensor:
        slots = [
            table[row, at // self._size] * self._size + at % self._size
            for row, at in enumerate(positions)
        ]
        return torch.cat(slots).to(torch.int32)

    def _visible(self, table: Tensor) -> Tensor:
        """The table as the runtime would show it: nothing beyond the sequence's last block."""
        used = _int32([-(-length // self._size) for length in self._lengths])
        hidden = torch.arange(table.shape[1]) >= used[:, None]
        return table.masked_fill(hidden, -1).to(torch.int32)


def _nan(spec: CacheSpec | None, blocks: int, block_size: int, dtype: torch.dtype) -> Tensor:
    """A layer's cache filled with NaN, whatever dtype it is read as; empty if it keeps nothing."""
    if spec is None:
        return torch.empty(0, dtype=dtype)
    shape = spec.layer_shape(blocks, block_size)
    if isinstance(spec, RecurrentSpec):
        return torch.full(shape, 0xFF, dtype=torch.uint8)
    return torch.full(shape, torch.nan, dtype=dtype)


def _int32(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)
