# SPDX-License-Identifier: Apache-2.0
"""Vectors of texts, from a folder like Qwen3-Embedding's, against transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import processors
from torch.nn.functional import cosine_similarity, normalize
from transformers import AutoModel

from rtp_llm import LLM, PoolingParams, SamplingParams
from rtp_llm.loader import WeightError
from rtp_llm.request.params import POOLING_TYPES
from rtp_llm.testing.engine.tiny_llm import SMALL
from rtp_llm.testing.model_folders import byte_level
from rtp_llm.testing.models.transformers_models import save_model

TEXTS = ["", "Once upon a time", "x", "What is 12 + 30? " * 9, "你好", "a longer text " * 20]
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {
        "idx": 2,
        "name": "2",
        "path": "2_Normalize",
        "type": "sentence_transformers.models.Normalize",
    },
]


def write_modules(folder: Path, modules: Any = MODULES, **pooling: Any) -> Path:
    (folder / "1_Pooling").mkdir(parents=True, exist_ok=True)
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tokenizer appends an end; weights are those of the decoder alone, without "model."."""
    path, tokenizer = tmp_path_factory.mktemp("embedding"), byte_level()
    end = tokenizer.token_to_id("<|im_end|>")
    size = tokenizer.get_vocab_size()
    save_model(path, "qwen3", vocab_size=size, eos_token_id=end, tie_word_embeddings=False)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|im_end|>", special_tokens=[("<|im_end|>", end)]
    )
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    weights = load_file(path / "model.safetensors")
    decoder = {name.removeprefix("model."): each for name, each in weights.items()}
    del decoder["lm_head.weight"]
    save_file(decoder, path / "model.safetensors", {"format": "pt"})
    return write_modules(path, pooling_mode_lasttoken=True, pooling_mode_mean_tokens=False)


@pytest.fixture(scope="module")
def llm(folder: Path) -> Any:
    with LLM(folder, dtype="float32", max_batch_tokens_size=64, **SMALL) as made:
        yield made


def expected(folder: Path, ids: list[int], dtype: torch.dtype = torch.float32) -> Any:
    model = AutoModel.from_pretrained(folder, dtype=dtype).eval()
    with torch.inference_mode():
        states = model(input_ids=torch.tensor([ids])).last_hidden_state[0].float()
    weights = torch.arange(1.0, len(ids) + 1)
    return {
        "last": states[-1],
        "cls": states[0],
        "mean": states.mean(0),
        "max": states.amax(0),
        "weightedmean": weights @ states / weights.sum(),
    }


def test_texts_are_embedded_as_the_folder_says(llm: Any, folder: Path) -> None:
    outputs = llm.embed(TEXTS)
    assert [output.prompt for output in outputs] == TEXTS
    end = llm.tokenizer.encode("")[-1]
    for output in outputs:
        assert output.finished and output.prompt_token_ids[-1] == end
        wanted = normalize(expected(folder, output.prompt_token_ids)["last"], dim=0)
        found = torch.tensor(output.outputs.embedding)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
        assert output.outputs.hidden_size == len(wanted)
    again = llm.embed([output.prompt_token_ids for output in outputs])
    assert [each.prompt for each in again] == [None] * len(TEXTS)
    for one, other in zip(outputs, again, strict=True):
        assert one.outputs.embedding == pytest.approx(other.outputs.embedding, abs=1e-5)
    assert llm.embed("Once upon a time")[0].prompt_token_ids == outputs[1].prompt_token_ids
    assert llm.embed([]) == []


@pytest.mark.parametrize("kind", POOLING_TYPES)
@pytest.mark.parametrize("normalized", [False, True])
def test_all_ways_of_pooling(llm: Any, folder: Path, kind: Any, normalized: bool) -> None:
    params = PoolingParams(pooling_type=kind, normalize=normalized)
    for output in llm.embed(TEXTS, pooling_params=params):
        wanted = expected(folder, output.prompt_token_ids)[kind]
        wanted = normalize(wanted, dim=0) if normalized else wanted
        found = torch.tensor(output.outputs.embedding)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_bfloat16(folder: Path) -> None:
    with LLM(folder, dtype="bfloat16", max_batch_tokens_size=64, **SMALL) as llm:
        for kind in POOLING_TYPES:
            for output in llm.embed(TEXTS, pooling_params=PoolingParams(pooling_type=kind)):
                wanted = expected(folder, output.prompt_token_ids)[kind]
                found = torch.tensor(output.outputs.embedding)
                assert cosine_similarity(found, wanted, dim=0) > 0.995
                assert found.norm() == pytest.approx(1.0, abs=1e-5)


def test_long_and_empty_prompts(llm: Any) -> None:
    limit = llm.ready.max_model_len
    with pytest.raises(ValueError, match=f"longer than the longest sequence of {limit}"):
        llm.embed([[5] * (limit + 1)])
    for keep in (9, -1):
        (output,) = llm.embed([[5] * (limit + 1)], truncate_prompt_tokens=keep)
        assert len(output.prompt_token_ids) == (9 if keep == 9 else limit)
    with pytest.raises(ValueError, match="the prompt has no tokens"):
        llm.embed([{"prompt_token_ids": []}])
    with pytest.raises(ValueError, match="2 pooling_params for 1 prompts"):
        llm.embed("x", pooling_params=[PoolingParams()] * 2)
    with pytest.raises(ValueError, match="pooling_type='min' must be one of last, mean, cls, max"):
        PoolingParams(pooling_type="min")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"={limit + 1} must not exceed the model's context"):
        llm.embed("x", truncate_prompt_tokens=limit + 1)


def test_truncated_texts_keep_their_special_tokens(llm: Any) -> None:
    end, text = llm.tokenizer.encode("")[-1], "a longer text " * 200
    whole = llm.tokenizer.encode(text)
    for keep in (9, -1):
        (output,) = llm.embed(text, truncate_prompt_tokens=keep)
        size = 9 if keep == 9 else llm.ready.max_model_len
        assert output.prompt_token_ids == [*whole[: size - 1], end]
    assert llm.tokenizer.encode_truncated(text, 9, side="left") == whole[-9:]
    assert llm.tokenizer.encode_truncated("x", 9) == llm.tokenizer.encode("x")


def write_embedding_files(folder: Path) -> Callable[[torch.Tensor], torch.Tensor]:
    """Two Dense layers, sizes to cut to and prompts; returns what the layers do."""
    torch.manual_seed(3)
    weights, biases = [torch.randn(40, 64), torch.randn(24, 40)], [torch.randn(40), None]
    modules: list[Any] = [*MODULES[:2]]
    for number, (weight, bias) in enumerate(zip(weights, biases, strict=True), 2):
        path = folder / f"{number}_Dense"
        path.mkdir()
        tensors = {"linear.weight": weight} | ({} if bias is None else {"linear.bias": bias})
        save_file(tensors, path / "model.safetensors")
        sizes = {"in_features": weight.shape[1], "out_features": len(weight)}
        name = "Tanh" if bias is not None else "Identity"
        activation = f"torch.nn.modules.activation.{name}"
        config = {**sizes, "bias": bias is not None, "activation_function": activation}
        (path / "config.json").write_text(json.dumps(config))
        modules.append({"path": path.name, "type": "sentence_transformers.models.Dense"})
    write_modules(folder, [*modules, MODULES[2]], pooling_mode_mean_tokens=True)
    values = json.loads((folder / "config.json").read_text())
    values["matryoshka_dimensions"] = [8, 24]
    (folder / "config.json").write_text(json.dumps(values))
    prompts = {"prompts": {"query": "Find: ", "document": ""}, "default_prompt_name": "document"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return lambda pooled: (weights[0] @ pooled + biases[0]).tanh() @ weights[1].T


def test_dense_layers_cuts_and_named_prompts(folder: Path, tmp_path: Path) -> None:
    """Pool, then all Dense layers, then cut, then normalise."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    dense = write_embedding_files(tmp_path)
    with LLM(tmp_path, dtype="float32", **SMALL) as llm:
        assert (llm.ready.vector_size, llm.ready.matryoshka) == (24, (8, 24))
        sizes = [None, 8, 24]
        params = [PoolingParams(dimensions=size) for size in sizes]
        params += [PoolingParams(dimensions=8, normalize=False)]
        outputs = llm.embed(["a house"] * 4, pooling_params=params)
        ids = llm.tokenizer.encode("a house")
        vector = dense(expected(tmp_path, ids)["mean"])
        for output, size in zip(outputs, sizes, strict=False):
            found = torch.tensor(output.outputs.embedding)
            wanted = normalize(vector[:size], dim=0)
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
        plain = torch.tensor(outputs[3].outputs.embedding)
        torch.testing.assert_close(plain, vector[:8], rtol=1e-4, atol=1e-4)
        with pytest.raises(ValueError, match=r"dimensions=9: .* one of these sizes: 8, 24"):
            llm.embed("x", pooling_params=PoolingParams(dimensions=9))
        (query,) = llm.embed("a house", prompt_name="query")
        assert query.prompt_token_ids == llm.tokenizer.encode("Find: a house")
        with pytest.raises(ValueError, match=r"prompt_name='other'.* names: query, document"):
            llm.embed("x", prompt_name="other")


def test_embeddings_are_cut_only_where_that_is_declared(llm: Any) -> None:
    with pytest.raises(ValueError, match=r"dimensions=9: .* 64 numbers and are not made to be cut"):
        llm.embed("x", pooling_params=PoolingParams(dimensions=9))
    (whole,) = llm.embed("x", pooling_params=PoolingParams(dimensions=64))
    assert whole.outputs.embedding == llm.embed("x")[0].outputs.embedding


def test_tasks(llm: Any, folder: Path, tmp_path: Path) -> None:
    assert llm.ready.tasks == ("embed",)
    assert llm.ready.pooling == PoolingParams(pooling_type="last", normalize=True)
    with pytest.raises(ValueError, match=r"for embed, not to generate; .* --task generate"):
        llm.generate("x", SamplingParams(max_tokens=1))
    with pytest.raises(WeightError, match="lm_head"):
        LLM(folder, task="generate", **SMALL)
    save_model(tmp_path, "llama", vocab_size=byte_level().get_vocab_size())
    byte_level().save(str(tmp_path / "tokenizer.json"))
    with LLM(tmp_path, **SMALL) as generates:
        assert generates.ready.tasks == ("generate",)
        with pytest.raises(ValueError, match="served for generate, not to embed"):
            generates.embed("x")
    with LLM(tmp_path, task="all", **SMALL) as both:
        assert both.ready.tasks == ("generate", "embed")
        assert both.generate("x", SamplingParams(max_tokens=2))[0].outputs[0].token_ids
        assert len(both.embed("x")[0].outputs.embedding) == 64
