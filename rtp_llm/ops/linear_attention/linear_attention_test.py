# SPDX-License-Identifier: Apache-2.0
"""Linear attention against transformers' modules: chunks, blocks, rejected tokens, in one batch.

A sequence is computed in chunks of any size in a batch with others; after a short chunk a few of
its tokens may be rejected, and others come instead. The results must be those of the whole
sequence, whatever a block held before.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from rtp_llm import ops
from rtp_llm.testing.light_transformers import light_transformers
from rtp_llm.testing.operator_checks import (
    FLOAT_DTYPES,
    ISAS,
    assert_near,
    kernel_runs,
    running,
)

with light_transformers():
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

every_isa = pytest.mark.parametrize("isa", ISAS)
RING, WINDOW, BLOCKS = 16, 8, 40


@dataclass(frozen=True)
class Sizes:
    """Heads of keys and values, their widths, and the convolution's length."""

    key_heads: int
    heads: int
    size: int
    values: int
    kernel: int = 4

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.size + self.heads * self.values


ALL_SIZES = (
    Sizes(2, 4, 16, 16),
    Sizes(1, 1, 8, 24),
    Sizes(2, 2, 40, 8),
    Sizes(1, 3, 24, 16, kernel=2),
    Sizes(2, 4, 128, 128),
)
every_size = pytest.mark.parametrize("sizes", ALL_SIZES, ids=str)


@dataclass
class Sequence:
    """One sequence's true inputs, how many are computed, and its block (-1: none yet)."""

    x: Tensor
    ba: Tensor
    done: int = 0
    block: int = -1
    conv: list[Tensor] = field(default_factory=list)
    out: list[Tensor] = field(default_factory=list)


class Layer:
    """Weights and the states of one layer, full of another's rubbish at first."""

    def __init__(self, sizes: Sizes, dtype: torch.dtype, state_dtype: torch.dtype) -> None:
        self.sizes, self.dtype = sizes, dtype
        heads, size, values = sizes.heads, sizes.size, sizes.values
        self.weight = (torch.randn(sizes.channels, sizes.kernel) / 2).to(dtype)
        self.a_log = torch.rand(heads) * 2
        self.dt_bias = torch.randn(heads)
        ring = sizes.kernel - 1 + WINDOW
        self.inputs = torch.full((BLOCKS, ring, sizes.channels), torch.nan, dtype=dtype)
        self.state = torch.full((BLOCKS, heads, values, size), torch.nan, dtype=state_dtype)
        self.ring_k = torch.full((BLOCKS, RING, sizes.key_heads, size), torch.nan, dtype=dtype)
        self.ring_u = torch.full((BLOCKS, RING, heads, values), torch.nan)
        self.ring_g = torch.full((BLOCKS, RING, heads), torch.nan)
        self.folded = torch.full((BLOCKS, heads, values // 8), 1 << 20, dtype=torch.int32)

    def sequence(self, length: int) -> Sequence:
        x = torch.randn(length, self.sizes.channels).to(self.dtype)
        return Sequence(x, torch.randn(length, 2 * self.sizes.heads).to(self.dtype))

    def step(self, chunks: list[tuple[Sequence, int, int]], move: float = 0.3) -> None:
        """The next (accepted + rejected) tokens of each; the rejected ones are random.

        `move`: how likely it is that a state moves to another block.
        """
        x, ba, read, write = [], [], [], []
        for sequence, accepted, rejected in chunks:
            wrong = self.sequence(rejected)
            x += [sequence.x[sequence.done :][:accepted], wrong.x]
            ba += [sequence.ba[sequence.done :][:accepted], wrong.ba]
            read.append(sequence.block)
            if sequence.block < 0 or random.random() < move:
                taken = {each.block for each, _, _ in chunks} | set(write) | {0}
                sequence.block = random.choice([b for b in range(BLOCKS) if b not in taken])
            write.append(sequence.block)
        counts = [accepted + rejected for _, accepted, rejected in chunks]
        lengths = [each.done + count for (each, _, _), count in zip(chunks, counts, strict=True)]
        starts = torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
        indices = [torch.tensor(each, dtype=torch.int32) for each in (lengths, read, write)]
        step = starts, *indices, max(counts)
        # Extra columns, as of a product with more outputs; and a row that belongs to no sequence.
        wide = functional.pad(torch.cat(x), (8, 3, 0, 1))[:, 8:-3]
        mixed = ops.causal_conv1d(wide, self.weight, self.inputs, *step)
        ring = self.ring_k, self.ring_u, self.ring_g
        gates = functional.pad(torch.cat(ba), (0, 0, 0, 1))
        constants = self.a_log, self.dt_bias, self.state, *ring, self.folded
        out = ops.gated_delta_rule(mixed, gates, *constants, *step)
        assert not mixed[-1].any() and not out[-1].any()
        at = 0
        for (sequence, accepted, _), count in zip(chunks, counts, strict=True):
            sequence.conv.append(mixed[at : at + accepted])
            sequence.out.append(out[at : at + accepted])
            sequence.done += accepted
            at += count

    def check(self, sequence: Sequence) -> None:
        sizes = self.sizes
        kernel = self.weight.float()[:, None]
        line = functional.pad(sequence.x.float().T[None], (sizes.kernel - 1, 0))
        expected = functional.silu(functional.conv1d(line, kernel, groups=sizes.channels)[0].T)
        mixed = torch.cat(sequence.conv)
        assert_near(mixed, expected[: sequence.done].to(self.dtype))
        expected = self.of_the_whole(mixed, sequence.ba[: sequence.done])
        tolerance = {torch.float32: 2e-5}.get(self.dtype, 2e-2)
        if self.state.dtype is not torch.float32:
            tolerance = 5e-2
        assert_near(torch.cat(sequence.out), expected.to(self.dtype), tolerance)

    def of_the_whole(self, mixed: Tensor, ba: Tensor) -> Tensor:
        sizes, heads = self.sizes, self.sizes.heads
        width = sizes.key_heads * sizes.size
        q, k, v = mixed.float().split([width, width, heads * sizes.values], dim=1)
        q, k = (
            each.unflatten(1, (-1, sizes.size)).repeat_interleave(heads // sizes.key_heads, 1)
            for each in (q, k)
        )
        b, a = ba.float().chunk(2, dim=1)
        g = -self.a_log.exp() * functional.softplus(a + self.dt_bias)
        rows = q, k, v.unflatten(1, (heads, -1)), g, b.sigmoid()
        batched = (each[None] for each in rows)
        out, _ = torch_recurrent_gated_delta_rule(
            *batched, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=True
        )
        result: Tensor = out[0]
        return result


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
    random.seed(0)


@every_isa
@every_size
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_chunks_and_windows_of_several_sequences(
    isa: str, sizes: Sizes, dtype: torch.dtype
) -> None:
    layer = Layer(sizes, dtype, torch.float32)
    sequences = [layer.sequence(random.randint(1, 150)) for _ in range(6)]
    with running(isa):
        while unfinished := [each for each in sequences if each.done < len(each.x)]:
            chunks = []
            for each in random.sample(unfinished, random.randint(1, len(unfinished))):
                left = len(each.x) - each.done
                accepted = min(left, random.choice([1, 1, 2, 3, 7, 8, 30, 64, 65, 100]))
                chunks.append((each, accepted, random.randint(0, max(0, WINDOW - accepted))))
            layer.step(chunks)
    for each in sequences:
        layer.check(each)


@every_isa
def test_one_token_a_step(isa: str) -> None:
    layer = Layer(ALL_SIZES[0], torch.float32, torch.float32)
    sequences = [layer.sequence(40) for _ in range(3)]
    with running(isa):
        for _ in range(40):
            layer.step([(each, 1, 0) for each in sequences])
    for each in sequences:
        layer.check(each)


@every_isa
def test_states_in_bfloat16(isa: str) -> None:
    layer = Layer(ALL_SIZES[0], torch.bfloat16, torch.bfloat16)
    sequence = layer.sequence(60)
    with running(isa):
        for accepted in (30, *[1] * 10, *[4] * 5):
            layer.step([(sequence, accepted, 0)])
    layer.check(sequence)


@every_isa
@pytest.mark.parametrize("chunk", [1, 5, 9, 30])
def test_a_block_that_is_read_only_stays_as_it_is(isa: str, chunk: int) -> None:
    layer = Layer(ALL_SIZES[0], torch.float32, torch.float32)
    memory = layer.inputs, layer.state, layer.ring_k, layer.ring_u, layer.ring_g, layer.folded
    sequence = layer.sequence(60)
    with running(isa):
        layer.step([(sequence, 20, 0)])
        layer.step([(sequence, 3, 2)], move=0)
        block, before = sequence.block, [each[sequence.block].clone() for each in memory]
        layer.step([(sequence, chunk, 0)], move=1)
    assert sequence.block != block
    layer.check(sequence)
    for each, kept in zip(memory, before, strict=True):
        torch.testing.assert_close(each[block], kept, rtol=0, atol=0, equal_nan=True)


@every_isa
def test_rows_and_sequences_of_nothing(isa: str) -> None:
    layer = Layer(ALL_SIZES[0], torch.float32, torch.float32)
    sequence = layer.sequence(20)
    with running(isa):
        layer.step([(sequence, 12, 0), (layer.sequence(0), 0, 0)])
        layer.step([(layer.sequence(0), 0, 0)])
        layer.step([(layer.sequence(0), 0, 0), (sequence, 8, 0)])
    layer.check(sequence)


@every_isa
def test_every_length_of_chunks_gives_one_state(isa: str) -> None:
    sizes = Sizes(1, 2, 16, 16)
    layer = Layer(sizes, torch.float32, torch.float32)
    prompt, end = layer.sequence(131 + 20), 131
    with running(isa):
        layer.step([(prompt, end + 20, 0)])
        layer.check(prompt)
        state = layer.state[prompt.block].clone()
        for length in range(1, end):
            sequence = Sequence(prompt.x, prompt.ba)
            while sequence.done < end:
                layer.step([(sequence, min(length, end - sequence.done), 0)], move=0)
            # What is left in the ring goes into the state with a chunk that is longer than it.
            layer.step([(sequence, 20, 0)], move=0)
            assert_near(torch.cat(sequence.out), torch.cat(prompt.out), 2e-5)
            assert_near(layer.state[sequence.block], state, 2e-5)


@every_isa
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_a_sequence_does_not_depend_on_its_batch(isa: str, dtype: torch.dtype) -> None:
    layer = Layer(Sizes(1, 2, 32, 64), dtype, torch.float32)
    together = [layer.sequence(length) for length in (90, 30, 30, 30, 30, 30)]
    alone = [(copy.deepcopy(layer), Sequence(each.x, each.ba)) for each in together]
    with running(isa):
        for chunk in (20, 1, 4, 5):
            layer.step([(each, chunk, 0) for each in together], move=0)
            for own, each in alone:
                own.step([(each, chunk, 0)], move=0)
    for (_, one), other in zip(alone, together, strict=True):
        torch.testing.assert_close(torch.cat(one.out), torch.cat(other.out), rtol=0, atol=0)


def test_the_kernels_run() -> None:
    layer = Layer(ALL_SIZES[0], torch.float32, torch.float32)
    with kernel_runs("causal_conv1d"), kernel_runs("gated_delta_rule"):
        layer.step([(layer.sequence(3), 3, 0)])
