# SPDX-License-Identifier: Apache-2.0
"""Keys and values of draft heads and draft models are those that true hidden states give.

Drafting writes others, made from the draft's own states; the next step must replace them all.
A draft model needs tokens alone: the last draft that was right is there a step later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm.attention.batch import ForwardBatch
from rtp_llm.engine.messages import INDEX_BITS
from rtp_llm.testing.engine.drafting_models import (
    DRAFT_MODELS,
    HEADS,
    WORDS,
    accepted,
    save_drafting_model,
)
from rtp_llm.testing.engine.replays import capture_on_cpu
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.hybrid_model import whole_batch
from rtp_llm.testing.models.transformers_models import random_prompt

Tables = tuple[NDArray[np.int32], ...]  # by cache group: the blocks of one sequence
SIZES: dict[str, Any] = {"seq_size_per_block": 4, "max_batch_tokens_size": 16}


class DraftCache:
    """Compares the cache of an engine's draft layers after each step with a fresh prefill."""

    def __init__(self, engine: TinyEngine, prompts: dict[int, list[int]]) -> None:
        self.checked = 0
        self._engine, self._prompts = engine, prompts
        runner = engine.built.worker.runner
        self._model, self._cache, self._forward = runner.model, runner.cache, runner.forward
        self._sequences: list[tuple[int, int, Tables]] = []
        runner.forward = self.forward  # type: ignore[method-assign]

    def forward(self, step: Any) -> Tensor:
        plan = step.plan  # its arrays are the next one's, too
        ids, ends = plan.seq_ids.tolist(), plan.seq_lens.tolist()
        self._sequences = [
            (*each, tuple(table[row : row + 1].flatten() for table in plan.block_table))
            for row, each in enumerate(zip(ids, ends, strict=True))
        ]
        return self._forward(step)

    def check(self) -> None:
        """After a step, all of whose tokens are known."""
        for sequence, end, tables in self._sequences:
            request, index = divmod(sequence, 1 << INDEX_BITS)
            outcome = self._engine.outcomes[request, index]
            if outcome.finish is None:
                tokens = [*self._prompts[request], *outcome.tokens]
                self._check(tables, tokens, min(end, len(tokens) - 1))

    def _check(self, tables: Tables, tokens: Sequence[int], count: int) -> None:
        """The first ``count`` positions, as far as a window has them."""
        fresh = self._fresh(tokens, count)
        assert self._model.drafts is not None
        end = count if self._model.drafts.width else count - 1
        for layer in range(self._model.config.num_layers, len(self._cache.layer_group)):
            group = self._cache.layer_group[layer]
            window = self._cache.groups[group].spec.window or count
            places = np.arange(max(0, count - window), end)
            blocks = tables[group][places // self._cache.block_size]
            mine = self._cache.layers[layer][:, blocks, places % self._cache.block_size]
            other = fresh[layer][:, 1, places]
            torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4)
            self.checked += len(places)

    @torch.inference_mode()
    def _fresh(self, tokens: Sequence[int], count: int) -> tuple[Tensor, ...]:
        """The caches of all layers, with the ``count`` first tokens in block 1."""
        batch: ForwardBatch = whole_batch(self._model, tokens[:count])
        hidden = self._model(batch)
        assert self._model.drafts is not None
        # Heads read the token after the one that a hidden state belongs to.
        begin = 1 if self._model.drafts.width else 0
        ids = torch.tensor(tokens[begin : begin + count], dtype=torch.int32)
        self._model.draft(replace(batch, token_ids=ids), self._model.draft_states(hidden))
        return batch.kv_cache


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("kind", HEADS + DRAFT_MODELS)
def test_it_is_that_of_a_fresh_prefill(
    tmp_path: Path, kind: str, graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_drafting_model(tmp_path, kind)
    if graphs:
        capture_on_cpu(monkeypatch)
    # Of a reused prefix a head's last keys are of the token that came there first.
    engine = TinyEngine(model.folder, **model.settings, **SIZES, reuse_cache=False)
    while engine.engine.has_idle_work:
        engine.engine.work_idle()
    prompts = {n + 1: random_prompt(2 + 13 * n, n, WORDS) for n in range(4)}
    cache = DraftCache(engine, prompts)
    for prompt in prompts.values():
        engine.add(prompt, max_tokens=24, ignore_eos=True)
    while engine.engine.has_work:
        engine.step()
        cache.check()
    assert cache.checked > 500
    assert accepted(engine) > 0
