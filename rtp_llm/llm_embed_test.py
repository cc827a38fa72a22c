# SPDX-License-Identifier: Apache-2.0
"""Vectors of texts, from a folder like Qwen3-Embedding's, against transformers."""

from __future__ import annotations

import json
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
from rtp_llm.model_folder import ModelFilesError
from rtp_llm.request.params import POOLING_TYPES
from rtp_llm.testing.engine.tiny_llm import SMALL
from rtp_llm.testing.model_folders import byte_level
from rtp_llm.testing.models.transformers_models import save_model
from rtp_llm.text.pooling_config import read_pooling

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
    return {"last": states[-1], "cls": states[0], "mean": states.mean(0)}


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
    with pytest.raises(ValueError, match="pooling_type='max' must be one of last, mean, cls"):
        PoolingParams(pooling_type="max")  # type: ignore[arg-type]


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


@pytest.mark.parametrize(
    ("pooling", "kind"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_mean_tokens": True, "word_embedding_dimension": 8}, "mean"),
        ({"pooling_mode": "lasttoken"}, "last"),
    ],
)
def test_folders_say_how_to_pool(tmp_path: Path, pooling: dict[str, Any], kind: str) -> None:
    found = read_pooling(write_modules(tmp_path, MODULES[:2], **pooling))
    assert (found.pooling_type, found.normalize) == (kind, False)
    assert read_pooling(write_modules(tmp_path, **pooling)).normalize
    assert read_pooling(tmp_path / "none") == PoolingParams(pooling_type="last", normalize=True)


@pytest.mark.parametrize(
    ("modules", "pooling", "reason"),
    [
        (MODULES, {"pooling_mode_max_tokens": True}, "pooling by pooling_mode_max_tokens; cls"),
        (MODULES, {}, "pooling by nothing"),
        (MODULES, {"pooling_mode": "max"}, "pooling_mode 'max'"),
        (MODULES[:1], {}, "names no Pooling module"),
        ([*MODULES, {"type": "x.Dense", "path": "3_Dense"}], {}, "type Dense are not supported"),
        ([{"type": "x.Pooling", "path": "../up"}], {}, "no path in the folder"),
        ({}, {}, "must hold a list"),
    ],
)
def test_what_is_not_supported_is_named(
    tmp_path: Path, modules: Any, pooling: dict[str, Any], reason: str
) -> None:
    if reason.startswith("type Dense"):
        pooling = {"pooling_mode_lasttoken": True}
    with pytest.raises(ModelFilesError, match=reason):
        read_pooling(write_modules(tmp_path, modules, **pooling))
