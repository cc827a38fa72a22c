# SPDX-License-Identifier: Apache-2.0
"""Scores and labels of decoders with such a head, and of rerankers, against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm.engine.messages import RequestError
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.models.raw_config import ModelConfigError
from rtp_llm.models.refusals import UnsupportedModelError
from rtp_llm.request.params import PoolingParams
from rtp_llm.request.sampling_params import SamplingParams
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.gguf.models import save_gguf
from rtp_llm.testing.light_transformers import light_transformers
from rtp_llm.testing.models.transformers_models import random_prompt, randomize, save_model

with light_transformers():
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

PROMPTS = [random_prompt(length, seed=length) for length in (1, 5, 17, 40, 90)]
AUTO = {
    "ForSequenceClassification": AutoModelForSequenceClassification,
    "ForTokenClassification": AutoModelForTokenClassification,
}


def save_classifier(folder: Path, kind: str, end: str, labels: int, **changes: Any) -> Any:
    """A random decoder with a random head; returns transformers' model."""
    config = save_model(folder, kind, seed=1).config
    config.num_labels, config.pad_token_id = labels, 0
    for name, value in changes.items():
        setattr(config, name, value)
    torch.manual_seed(2)
    model: Any = AUTO[end].from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            randomize(name, parameter)
    for old in folder.glob("*.safetensors*"):
        old.unlink()
    with light_transformers():
        model.save_pretrained(folder)
    return model.eval()


def logits_of(model: Any, prompt: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=torch.tensor([prompt])).logits[0]
    return logits


def outcomes(engine: TinyEngine, **params: Any) -> list[torch.Tensor]:
    added = [engine.add_request(prompt, PoolingParams(**params)) for prompt in PROMPTS]
    engine.run()
    assert not any(engine.outcomes[each, 0].error for each in added)
    return [torch.tensor(engine.outcomes[each, 0].pooled) for each in added]


@pytest.mark.parametrize(
    ("kind", "labels", "problem", "activation"),
    [
        ("llama", 3, None, lambda logits: logits.softmax(0)),
        ("qwen2", 1, None, torch.sigmoid),
        ("qwen3", 2, "multi_label_classification", torch.sigmoid),
        ("mistral", 1, "regression", lambda logits: logits),
    ],
)
def test_texts_are_classified(
    kind: str, labels: int, problem: str | None, activation: Any, tmp_path: Path
) -> None:
    more = {} if problem is None else {"problem_type": problem}
    model = save_classifier(tmp_path, kind, "ForSequenceClassification", labels, **more)
    engine = TinyEngine(tmp_path, task="auto", max_batch_tokens_size=16)
    assert engine.ready.tasks == (("score",) if labels == 1 else ()) + ("classify", "reward")
    close = {"rtol": 1e-4, "atol": 1e-4}
    for prompt, scores, plain in zip(
        PROMPTS, outcomes(engine, task="classify"), outcomes(engine, task="reward"), strict=True
    ):
        expected = logits_of(model, prompt)
        torch.testing.assert_close(scores, activation(expected), **close)
        torch.testing.assert_close(plain, expected, **close)
    if labels == 1:
        scores = torch.stack(outcomes(engine, task="score", use_activation=False))
        expected = torch.stack([logits_of(model, prompt) for prompt in PROMPTS])
        torch.testing.assert_close(scores, expected, **close)
    with pytest.raises(RequestError, match=r"is served for .*, not to generate"):
        engine.add_request([5], SamplingParams())
    engine.assert_all_free()


def test_tokens_are_classified(tmp_path: Path) -> None:
    model = save_classifier(tmp_path, "qwen3", "ForTokenClassification", 4)
    engine = TinyEngine(tmp_path, task="auto", max_batch_tokens_size=16)
    assert engine.ready.tasks == ("token_classify", "reward")
    for prompt, scores in zip(PROMPTS, outcomes(engine, task="token_classify"), strict=True):
        expected = logits_of(model, prompt).softmax(1)
        torch.testing.assert_close(scores.view(-1, 4), expected, rtol=1e-4, atol=1e-4)
    engine.assert_all_free()


@pytest.mark.parametrize("per_token", [False, True])
def test_reward_models_have_two_layers(tmp_path: Path, per_token: bool) -> None:
    from safetensors.torch import load_file, save_file

    reference = save_model(tmp_path, "qwen2", seed=1)
    tensors = load_file(tmp_path / "model.safetensors")
    width, labels = reference.config.hidden_size, 2 if per_token else 1
    torch.manual_seed(4)
    layers = torch.nn.Sequential(
        torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, labels)
    )
    tensors |= {f"score.{name}": value for name, value in layers.state_dict().items()}
    save_file(tensors, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    name = "Qwen2ForProcessRewardModel" if per_token else "Qwen2ForRewardModel"
    config |= {"architectures": [name], "num_labels": labels}
    (tmp_path / "config.json").write_text(json.dumps(config))
    engine = TinyEngine(tmp_path, task="auto")
    for prompt, found in zip(PROMPTS, outcomes(engine, task="reward"), strict=True):
        with torch.inference_mode():
            states = reference.model(input_ids=torch.tensor([prompt])).last_hidden_state[0]
            expected = layers(states if per_token else states[-1:]).flatten()
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tied", [False, True])
def test_a_reranker_is_asked_for_yes_and_no(tmp_path: Path, tied: bool) -> None:
    reference = save_model(tmp_path, "qwen3", seed=1, tie_word_embeddings=tied)
    engine_settings = {"task": "score"}
    with pytest.raises(UnsupportedModelError, match="this model can generate and embed"):
        TinyEngine(tmp_path, **engine_settings)
    vocabulary = {"yes": 31, "no": 77}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))
    engine = TinyEngine(tmp_path, max_batch_tokens_size=16, **engine_settings)
    assert engine.ready.tasks == ("score",)
    for prompt, score in zip(PROMPTS, outcomes(engine, task="score"), strict=True):
        last = logits_of(reference, prompt)[-1]
        expected = torch.log_softmax(last[[77, 31]], 0).exp()[1:]
        torch.testing.assert_close(score, expected, rtol=1e-4, atol=1e-5)
    path = tmp_path / "1_LogitScore"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"true_token_id": 77, "false_token_id": 31}))
    modules = [{"path": "", "type": "x.Transformer"}, {"path": path.name, "type": "x.LogitScore"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    turned = TinyEngine(tmp_path, task="auto")
    assert turned.ready.tasks == ("score", "generate", "embed")[: len(turned.ready.tasks)]
    whole = zip(outcomes(engine, task="score"), outcomes(turned, task="score"), strict=True)
    for score, other in whole:
        torch.testing.assert_close(score + other, torch.ones(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("said", [{}, {"qwen3.pooling_type": 4}])
def test_a_reranker_in_a_gguf_file(tmp_path: Path, said: dict[str, int]) -> None:
    """llama.cpp's files also hold the rows of both answers again, which are not needed."""
    reference = save_model(tmp_path, "qwen3", seed=1)
    words = [f"word{number}" for number in range(reference.config.vocab_size)]
    file = tmp_path / "tiny.gguf"
    save_gguf(file, reference, "qwen3", more={"tokenizer.ggml.tokens": words, **said})
    why = "it has no tokens" if said else "this model can generate and embed"
    with pytest.raises(UnsupportedModelError, match=why):
        TinyEngine(file, task="score")
    words[31], words[77] = "yes", "no"
    save_gguf(file, reference, "qwen3", more={"tokenizer.ggml.tokens": words, **said})
    engine = TinyEngine(file, max_batch_tokens_size=16, task="auto" if said else "score")
    assert engine.ready.tasks[0] == "score"
    for prompt, score in zip(PROMPTS, outcomes(engine, task="score"), strict=True):
        last = logits_of(reference, prompt)[-1]
        expected = torch.log_softmax(last[[77, 31]], 0).exp()[1:]
        torch.testing.assert_close(score, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_a_reranker_whose_logits_head_is_not_in_the_file_is_refused(
    tmp_path: Path, kind: str
) -> None:
    """Of embeddings that are not tied llama.cpp's converter keeps two rows of the logits head."""
    sizes = {"hidden_size": 96, "intermediate_size": 96}
    reference = save_model(tmp_path, "qwen3", seed=1, tie_word_embeddings=True, **sizes)
    words = [f"word{number}" for number in range(reference.config.vocab_size)]
    words[31], words[77] = "yes", "no"
    file, more = tmp_path / "tiny.gguf", {"tokenizer.ggml.tokens": words, "qwen3.pooling_type": 4}
    save_gguf(file, reference, "qwen3", kind, more=more)
    rows = reference.lm_head.weight.detach()[[31, 77]]
    save_gguf(file, reference, "qwen3", kind, more=more, heads={"cls.output.weight": rows})
    assert TinyEngine(file, task="auto").ready.tasks[0] == "score"
    heads = {"cls.output.weight": torch.randn(2, 96)}
    save_gguf(file, reference, "qwen3", kind, more=more, heads=heads)
    with pytest.raises(UnsupportedModelError, match=r"output\.weight is missing"):
        TinyEngine(file, task="auto")


def test_broken_labels_are_named(tmp_path: Path) -> None:
    save_classifier(tmp_path, "llama", "ForSequenceClassification", 2)
    config = json.loads((tmp_path / "config.json").read_text())
    assert read_model_config(tmp_path).classifier is not None
    for changes, reason in (
        ({"id2label": {"0": "a", "7": "b"}}, "a label for each number from 0"),
        ({"id2label": {}}, "a label for each number from 0"),
        ({"problem_type": "ranking"}, "problem_type must be one of regression"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | changes))
        with pytest.raises(ModelConfigError, match=reason):
            read_model_config(tmp_path)
