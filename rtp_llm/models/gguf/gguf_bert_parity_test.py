# SPDX-License-Identifier: Apache-2.0
"""BERT in GGUF files against transformers' with the same weights: vectors of prompts and texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm.device import resolve_device
from rtp_llm.layers.gguf_matrix import GgufMatrix
from rtp_llm.loader import explain
from rtp_llm.models.config import UnsupportedModelError
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.request.params import PoolingParams
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.gguf.bert import save_bert_gguf
from rtp_llm.testing.models.encoder_models import expected_states, save_encoder
from rtp_llm.testing.models.open_model import model_settings, open_model
from rtp_llm.testing.models.transformers_models import random_prompt
from rtp_llm.text.pooling_config import read_pooling

_WIDE = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 256}
_Q4_K_M = {"": "Q4_K", "blk.0.attn_v.weight": "Q6_K", "blk.1.ffn_down.weight": "Q6_K"}
_Q4_K_M |= {"blk.1.attn_k.weight": "F16", "token_embd.weight": "Q6_K"}


def _vectors(file: Path, prompts: list[list[int]], **settings: Any) -> torch.Tensor:
    engine = TinyEngine(file, **settings)
    params = PoolingParams(pooling_type="mean", normalize=False)
    requests = [engine.add_request(prompt, params) for prompt in prompts]
    engine.run()
    return torch.tensor([engine.outcomes[request, 0].pooled for request in requests])


def _means(reference: Any, prompts: list[list[int]]) -> torch.Tensor:
    return torch.stack([expected_states(reference, prompt).mean(0) for prompt in prompts])


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_vectors_of_floats(tmp_path: Path, kind: str) -> None:
    """RoBERTa's files are called bert, too: their positions begin at the first row."""
    reference = save_encoder(tmp_path, kind)
    file = save_bert_gguf(tmp_path / "tiny.gguf", reference)
    prompts = [[7 + token % 190 for token in random_prompt(n, seed=n)] for n in (1, 5, 60, 300)]
    torch.testing.assert_close(
        _vectors(file, prompts), _means(reference, prompts), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("kinds", ["Q8_0", _Q4_K_M])
def test_vectors_of_blocks(tmp_path: Path, kinds: Any) -> None:
    """Linear layers keep their blocks, and the embedding becomes floats."""
    reference = save_encoder(tmp_path, "bert", num_hidden_layers=2, **_WIDE)
    file = save_bert_gguf(tmp_path / "tiny.gguf", reference, kinds)
    model = open_model(file)
    kept = [module for module in model.modules() if isinstance(module, GgufMatrix)]
    assert len(kept) >= 2 * 4 and model.model.embeddings.word.dtype is torch.float32
    prompts = [random_prompt(n, seed=n) for n in (1, 40)]
    expected = _means(reference, prompts)
    found = _vectors(file, prompts, gguf_activations="float")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert torch.cosine_similarity(_vectors(file, prompts), expected).min() > 0.999
    settings = model_settings(torch.float32)
    text = explain(file, device=resolve_device("cpu"), settings=settings)
    assert "float32 while loading: embeddings of encoders are floats" in text


@pytest.mark.parametrize(
    ("number", "kind"), [(None, "mean"), (0, "mean"), (1, "mean"), (2, "cls"), (3, "last")]
)
def test_the_file_says_how_to_pool(tmp_path: Path, number: int | None, kind: str) -> None:
    reference = save_encoder(tmp_path, "bert", num_hidden_layers=1)
    said = {} if number is None else {"pooling_type": number}
    file = save_bert_gguf(tmp_path / "tiny.gguf", reference, **said)
    assert read_pooling(file, "mean").params == PoolingParams(pooling_type=kind, normalize=True)


@pytest.mark.parametrize("kinds", ["F32", "Q8_0"])
def test_rerankers_give_scores(tmp_path: Path, kinds: str) -> None:
    """As BGE's: XLM-RoBERTa with a head of two layers and one label."""
    sizes = {"num_hidden_layers": 2, "num_labels": 1, **_WIDE}
    name = "XLMRobertaForSequenceClassification"
    reference = save_encoder(tmp_path, "xlm_roberta", of=name, **sizes)
    file = save_bert_gguf(tmp_path / "tiny.gguf", reference, kinds, pooling_type=4)
    engine = TinyEngine(file, gguf_activations="float", task="auto")
    assert engine.ready.tasks == ("score", "classify", "reward")
    prompts = [[7 + token % 190 for token in random_prompt(n, seed=n)] for n in (2, 40)]
    params = PoolingParams(task="score", use_activation=False)
    requests = [engine.add_request(prompt, params) for prompt in prompts]
    engine.run()
    for request, prompt in zip(requests, prompts, strict=True):
        with torch.inference_mode():
            wanted = reference(input_ids=torch.tensor([prompt])).logits[0]
        found = torch.tensor(engine.outcomes[request, 0].pooled)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_labels_of_a_file(tmp_path: Path) -> None:
    name = "XLMRobertaForSequenceClassification"
    reference = save_encoder(tmp_path, "xlm_roberta", of=name, num_labels=3, num_hidden_layers=1)
    for given, labels in ((["a", "b", "c"], ("a", "b", "c")), (["a"], ("LABEL_0", "LABEL_1"))):
        keys = {"pooling_type": 4, "classifier__output_labels": given}
        config = read_model_config(save_bert_gguf(tmp_path / "tiny.gguf", reference, **keys))
        assert config.classifier is not None
        assert config.classifier.labels[: len(labels)] == labels
        assert config.tasks == ("classify", "reward")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"attention__causal": True}, r"used as a decoder.*bert\.attention\.causal is true"),
        ({"pooling_type": 4}, r"classification head of a GGUF file.*pooling_type is 4"),
    ],
)
def test_other_models_of_the_name_are_refused(
    tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    reference = save_encoder(tmp_path, "bert", num_hidden_layers=1)
    file = save_bert_gguf(tmp_path / "tiny.gguf", reference, **keys)
    with pytest.raises(UnsupportedModelError, match=message):
        read_model_config(file)
