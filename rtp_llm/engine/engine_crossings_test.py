# SPDX-License-Identifier: Apache-2.0
"""A step crosses from Python into C++ equally often, however many sequences it has."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import random_prompt, save_model

ALL = {
    "temperature": 1.0,
    "top_p": 0.9,
    "repetition_penalty": 1.1,
    "no_repeat_ngram_size": 3,
    "logit_bias": {5: 1.0},
    "min_tokens": 4,
    "logprobs": 2,
}


class Counted:
    """An object of the runtime that counts every use: calls, and properties, which are calls."""

    def __init__(self, target: Any, uses: Counter[str]) -> None:
        self._target, self._uses = target, uses

    def __getattr__(self, name: str) -> Any:
        self._uses[name] += 1
        found = getattr(self._target, name)
        is_view = type(found).__name__ in ("Batch", "Result")
        return Counted(found, self._uses) if is_view else found


class Operators(TorchDispatchMode):
    """Counts the operators that torch is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[str(func)] += 1
        return func(*args, **(kwargs or {}))


def crossings(folder: Any, num_sequences: int, params: dict[str, Any]) -> tuple[Any, Any]:
    """Uses of the runtime and of torch in a step in which ``num_sequences`` decode."""
    engine = TinyEngine(folder, max_running_requests=32)
    for number in range(num_sequences):
        engine.add(random_prompt(5 + number % 3, seed=number), ignore_eos=True, **params)
    for _ in range(3):
        engine.step()
    assert engine.engine._scheduler.stats()["running"] == num_sequences
    uses: Counter[str] = Counter()
    engine.engine._scheduler = Counted(engine.engine._scheduler, uses)
    with Operators() as operators:
        engine.step()
    return uses, operators.calls


@pytest.mark.parametrize("params", [{}, ALL], ids=["greedy", "everything"])
@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_their_number_is_fixed(
    kind: str, params: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp(kind)
    save_model(folder, kind, **({"sliding_window": 48} if kind == "mistral" else {}))
    alone, together = (crossings(folder, count, params) for count in (1, 32))
    assert alone == together
    uses, operators = alone
    assert {"schedule", "batch", "token_ids", "commit", "result"} <= set(uses)
    assert sum(uses.values()) < 50
    assert operators["rtp_llm.paged_attention.default"] == 3, "one for each layer"
