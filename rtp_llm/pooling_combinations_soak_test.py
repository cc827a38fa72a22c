# SPDX-License-Identifier: Apache-2.0
"""What models pool is the same with each setting that docs/embeddings.md says they take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rtp_llm import LLM
from rtp_llm.testing.engine.tiny_llm import SMALL
from rtp_llm.testing.model_folders import byte_level
from rtp_llm.testing.models.encoder_models import save_encoder
from rtp_llm.testing.models.transformers_models import save_model

TEXTS = ["a house", "which house has a garden?", "the one there. a garden " * 20]
WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] which house has a garden the one there . ?"
CLOSE = 1e-5
TWO_RANKS: dict[str, dict[str, Any]] = {
    "tensor parallel": {"tensor_parallel_size": 2},
    "data parallel": {"data_parallel_size": 2},
}
ANY: dict[str, dict[str, Any]] = {
    **TWO_RANKS,
    "graphs": {"enable_graphs": True},
    "no prefix cache": {"reuse_cache": False},
    "overlapped steps": {"enable_overlap": True},
}
OF_DECODERS: dict[str, dict[str, Any]] = {
    **ANY,
    "pipeline parallel": {"pipeline_parallel_size": 2},
    "chunks": {"max_batch_tokens_size": 64},
    "n-grams": {"speculative": "ngram"},
    "suffix trees": {"speculative": "suffix"},
    "a draft model": {"speculative": "draft-model"},
}


def pooled(folder: Path, **settings: Any) -> list[float]:
    """All numbers of all texts."""
    with LLM(folder, dtype="float32", **settings) as llm:
        outputs = llm.encode(TEXTS, use_tqdm=False)
    return [float(number) for output in outputs for number in output.outputs.data.flatten()]


@pytest.fixture(scope="module", params=["Model", "ForSequence", "ForToken"])
def encoder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[float]]:
    folder = tmp_path_factory.mktemp("encoder")
    end = request.param if request.param == "Model" else f"{request.param}Classification"
    heads: dict[str, Any] = {"num_attention_heads": 4, "hidden_size": 64}
    save_encoder(folder, "bert", of=f"Bert{end}", **heads)
    (folder / "vocab.txt").write_text("\n".join(WORDS.split()))
    return folder, pooled(folder, num_threads=1)


@pytest.mark.parametrize("name", ANY)
def test_encoders(encoder: tuple[Path, list[float]], name: str) -> None:
    folder, expected = encoder
    assert pooled(folder, num_threads=1, **ANY[name]) == pytest.approx(expected, abs=CLOSE)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    folder, tokenizer = tmp_path_factory.mktemp("decoder"), byte_level()
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 512}
    for number, path in enumerate((folder, folder / "draft")):
        save_model(path, "qwen3", seed=1 + number, **sizes)
        tokenizer.save(str(path / "tokenizer.json"))
    return folder, pooled(folder, task="embed", **SMALL)


@pytest.mark.parametrize("name", OF_DECODERS)
def test_decoders(decoder: tuple[Path, list[float]], name: str) -> None:
    folder, expected = decoder
    settings = dict(OF_DECODERS[name])
    if name == "a draft model":
        settings["speculative_model"] = str(folder / "draft")
    found = pooled(folder, task="embed", **SMALL, **settings)
    assert found == pytest.approx(expected, abs=CLOSE)
