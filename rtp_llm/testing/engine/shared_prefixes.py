# SPDX-License-Identifier: Apache-2.0
"""Random prompts that share random prefixes, for hybrid models: the cache changes no answer.

Logits are those of one uncached step over the whole sequence; every state that a chunk of a prompt
goes on from, or leaves, is the one that its tokens give; every block comes back.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from rtp_llm.engine.messages import INDEX_BITS
from rtp_llm.layers import MoeBlock
from rtp_llm.models.causal_lm import CausalLM
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.hybrid_model import plain_logits, plain_states

WORDS, LONGEST, LATELY = 11, 120, 10
# Logits of a router that are as near as this may be in the other order where products are summed in
# another one: then a token goes to another expert, and neither answer is wrong.
ROUTING_LIMIT = 1e-5
# Of a log-probability: where rounding is worst, prompts in chunks differ by 2e-3 from transformers
# without a cache, too.
LIMIT = 5e-3
SIZES: dict[str, Any] = {
    "seq_size_per_block": 4,
    "max_running_requests": 8,
    "max_seq_len": 200,
    "kv_cache_mem_mb": 2,
}


class Prompts:
    """Most of them begin as another one, or as a whole conversation, did."""

    def __init__(self, chance: random.Random) -> None:
        self._chance, self._said = chance, [[3]]

    def draw(self) -> list[int]:
        chance, prompt = self._chance, list[int]()
        if chance.random() < 0.8:
            prompt = list(chance.choice(self._said[-LATELY:]))
            if chance.random() < 0.5:
                del prompt[chance.randrange(len(prompt) + 1) :]
        for _ in range(chance.choice((1, 2, 5, 16, 33, 60))):
            prompt.append(chance.randrange(3, WORDS))
        self.said(prompt)
        return prompt[:LONGEST]

    def said(self, tokens: list[int]) -> None:
        """Later prompts may begin so."""
        self._said.append(tokens[:LONGEST])


class States:
    """Holds states of every step's prompts against those that their tokens give."""

    def __init__(self, engine: TinyEngine, prompts: dict[int, list[int]]) -> None:
        self.reused = self.left = 0
        self._runner, self._prompts = engine.built.worker.runner, prompts
        self._forward = self._runner.forward
        (self._group,) = self._runner.cache.recurrent
        self._runner.forward = self.forward  # type: ignore[assignment,method-assign]

    def forward(self, step: Any) -> Tensor:
        plan = step.plan
        ids, ends = plan.seq_ids.tolist(), plan.seq_lens.tolist()
        begins = plan.positions[plan.cu_seqlens_q[:-1]].tolist()
        reads, writes = (
            plan.state_read[self._group].tolist(),
            plan.state_write[self._group].tolist(),
        )
        for sequence, begin, read in zip(ids, begins, reads, strict=True):
            self.reused += self._is_right(sequence, begin, read)
        hidden = self._forward(step)
        for sequence, end, write in zip(ids, ends, writes, strict=True):
            self.left += self._is_right(sequence, end, write)
        return hidden

    def _is_right(self, sequence: int, count: int, block: int) -> bool:
        """Whether the state is that of the prompt's first ``count`` tokens; fails if it is another.

        False: the state ends after the prompt, or is empty.
        """
        prompt = self._prompts[sequence >> INDEX_BITS]
        if not 0 < count <= len(prompt):
            return False
        model, states = self._runner.model, self._runner.cache.states
        for mine, other in zip(states, plain_states(model, prompt[:count]), strict=True):
            if mine:
                pairs = zip(content(mine, block, count), content(other, 1, count), strict=True)
                for one, another in pairs:
                    torch.testing.assert_close(one, another, rtol=1e-3, atol=1e-3)
        return True


def content(states: tuple[Tensor, ...], block: int, count: int) -> tuple[Tensor, Tensor]:
    """S after ``count`` tokens, whatever of it is in the ring, and the inputs before them."""
    inputs, state, ring_k, ring_u, ring_g, folded = (each[block] for each in states)
    now, heads = state.float(), state.shape[0]
    for position in range(int(folded.flatten()[0]), count):
        row = position % len(ring_k)
        keys = ring_k[row].float()
        keys = keys * torch.rsqrt(keys.square().sum(-1, keepdim=True) + 1e-6)
        keys = keys.repeat_interleave(heads // len(keys), 0)
        now = ring_g[row].exp()[:, None, None] * now + ring_u[row][:, :, None] * keys[:, None]
    known = [position % len(inputs) for position in range(max(0, count - 3), count)]
    return now, inputs[known]


@contextmanager
def router_margins(model: CausalLM) -> Iterator[list[Tensor]]:
    """Of each mixture that computes meanwhile: by how much each token's last expert that is taken
    is before the first that is not, [T]."""
    gates = [module.gate for module in model.modules() if isinstance(module, MoeBlock)]
    margins: list[Tensor] = []

    def margin_of(gate: Any, x: Tensor) -> Tensor:
        logits: Tensor = type(gate).logits(gate, x)
        best = logits.topk(gate.config.top_k + 1).values
        margins.append(best[:, -2] - best[:, -1])
        return logits

    with ExitStack() as restored:
        for gate in gates:
            gate.logits = partial(margin_of, gate)  # type: ignore[method-assign]
            restored.callback(delattr, gate, "logits")
        yield margins


class Load:
    """Adds and aborts at random; holds each answer against an uncached step."""

    def __init__(self, engine: TinyEngine, seed: int, requests: int) -> None:
        self._engine, self._chance, self._requests = engine, random.Random(seed), requests
        self._draw = Prompts(self._chance)
        self.prompts: dict[int, list[int]] = {}
        self.states = States(engine, self.prompts)
        self.cached = self.checked = 0

    def run(self) -> None:
        while len(self.prompts) < self._requests:
            for _ in range(self._chance.randrange(3)):
                prompt, most = self._draw.draw(), self._chance.randrange(1, 30)
                options: dict[str, Any] = {
                    "max_tokens": most,
                    "ignore_eos": True,
                    "logprobs": WORDS,
                }
                self.prompts[self._engine.add(prompt, **options)] = prompt
            self._turn()
        while self._engine.engine.has_work:
            self._turn()
        self._engine.assert_all_free()

    def _turn(self) -> None:
        outcomes = self._engine.outcomes
        if outcomes and self._chance.random() < 0.03:
            victim = self._chance.choice(list(outcomes))
            self._engine.engine.abort([victim])
            del outcomes[victim]
        self._engine.step()
        self._engine.engine.check_integrity()
        for key in [key for key, outcome in outcomes.items() if outcome.finish]:
            self._check(self.prompts[key[0]], outcomes.pop(key))

    def _check(self, prompt: list[int], outcome: Any) -> None:
        whole = [*prompt, *outcome.tokens]
        self._draw.said(whole)
        model = self._engine.built.worker.runner.model
        with router_margins(model) as margins:
            rows = plain_logits(model, whole)[len(prompt) - 1 : -1].log_softmax(1)
        least = torch.stack(margins).amin(0) if margins else torch.ones(len(whole))
        for position, (row, token, entry) in enumerate(
            zip(rows, outcome.tokens, outcome.logprobs, strict=True), len(prompt) - 1
        ):
            if least[position] < ROUTING_LIMIT:
                continue
            assert float(row[token]) > float(row.max()) - LIMIT
            for other, logprob in entry.top:
                assert logprob == pytest.approx(float(row[other]), abs=LIMIT)
        self.cached += outcome.cached
        self.checked += 1
