# SPDX-License-Identifier: Apache-2.0
"""One model on two GPUs gives the tokens of one; skipped with fewer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from rtp_llm.testing.usable_gpu import usable_gpus

if TYPE_CHECKING:
    from rtp_llm.testing.engine.tiny_engine import TinyEngine

# The packages of the engine's link are not part of every image that has a GPU.
pytest.importorskip("msgspec")
pytest.importorskip("zmq")
GPU, COUNT = usable_gpus()
pytestmark = pytest.mark.skipif(COUNT < 2, reason=f"{COUNT} usable GPUs")
CASES: dict[str, dict[str, Any]] = {
    "plain llama": {},
    "plain qwen3": {"enable_graphs": False, "enable_overlap": False},
    "plain qwen3_moe": {},
    "ngram llama": {},
    "mtp deepseek_v3": {},
}


@pytest.mark.parametrize("named", CASES)
def test_the_tokens_of_one(named: str, tmp_path: Path) -> None:
    from rtp_llm.testing.engine.drafting_models import everything, save_drafting_model
    from rtp_llm.testing.engine.tensor_ranks import SMALL, check_alike, ranks
    from rtp_llm.testing.engine.tiny_engine import TinyEngine

    model = save_drafting_model(tmp_path, named)
    own = {} if named.startswith("plain") else model.settings
    settings = {**SMALL, "seq_size_per_block": 16, "device_type": GPU, **own, **CASES[named]}
    settings["kv_cache_mem_mb"] = 16

    def play(engine: TinyEngine) -> None:
        while engine.engine.has_idle_work:
            engine.engine.work_idle()
        everything(engine)
        engine.run()
        engine.assert_all_free()

    one = TinyEngine(model.folder, **settings)
    play(one)
    with ranks(model.folder, **settings) as engine:
        play(engine)
        check_alike(engine.outcomes, one.outcomes)


def centred_logits(engine: TinyEngine) -> torch.Tensor:
    """Of a prompt in chunks: [tokens, vocabulary], each row's mean taken off."""
    from rtp_llm.testing.models.transformers_models import random_prompt

    vocabulary = 199
    engine.add(random_prompt(150), prompt_logprobs=vocabulary, max_tokens=1)
    engine.run()
    (outcome,) = engine.outcomes.values()
    rows = [sorted(each.top) for each in outcome.prompt_logprobs.values()]
    assert all([token for token, _ in row] == list(range(vocabulary)) for row in rows)
    logprobs = torch.tensor([[value for _, value in row] for row in rows])
    return logprobs - logprobs.mean(dim=-1, keepdim=True)


def save_even_model(folder: Path, kind: str, **config: Any) -> None:
    """One that magnifies what is rounded as little as trained models do."""
    from rtp_llm.testing.models.transformers_models import save_model

    # Wide enough for the kernels of few rows on either number of ranks.
    model = save_model(folder, kind, num_attention_heads=8, intermediate_size=256, **config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layers" in name and "norm" not in name:
                parameter.mul_(0.4)
    model.save_pretrained(folder)


# All experts of a mixture: which ones are chosen may hang on the last bit of a score.
@pytest.mark.parametrize(
    ("kind", "config"),
    [("llama", {}), ("qwen3", {}), ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 4})],
)
def test_logits_of_one_in_bfloat16(kind: str, config: dict[str, Any], tmp_path: Path) -> None:
    from rtp_llm.testing.engine.tensor_ranks import SMALL, ranks
    from rtp_llm.testing.engine.tiny_engine import TinyEngine

    save_even_model(tmp_path, kind, **config)
    settings = {**SMALL, "seq_size_per_block": 16, "device_type": GPU, "dtype": "bfloat16"}
    settings |= {"kv_cache_mem_mb": 16, "max_batch_tokens_size": 48}
    one = centred_logits(TinyEngine(tmp_path, **settings))
    with ranks(tmp_path, **settings) as engine:
        two = centred_logits(engine)
    assert torch.nn.functional.cosine_similarity(one, two).min() >= 0.9999
