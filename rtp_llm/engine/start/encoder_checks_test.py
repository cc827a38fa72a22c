# SPDX-License-Identifier: Apache-2.0
"""What encoders refuse at start-up, what they need of a step, and what `explain` says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rtp_llm.config.encoder_refusals import ENCODER_REFUSALS
from rtp_llm.config.settings import Settings
from rtp_llm.config.tasks import TaskError
from rtp_llm.device import resolve_device
from rtp_llm.engine.messages import EngineStartError, RequestError
from rtp_llm.engine.start.encoder_checks import check_encoder
from rtp_llm.engine.start.memory_estimate import explain_cache, explain_graphs
from rtp_llm.loader import explain
from rtp_llm.models.config import UnsupportedModelError
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.request.params import PoolingParams
from rtp_llm.testing.engine.replays import capture_on_cpu
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.encoder_models import save_encoder
from rtp_llm.testing.models.transformers_models import random_prompt

REFUSED: dict[str, dict[str, Any]] = {
    "--kv-cache-dtype": {"kv_cache_dtype": "fp8_e4m3"},
    "--cache-store-mem-mb": {"cache_store_mem_mb": 8},
    "--role": {"role": "prefill"},
    "--speculative": {"speculative": "ngram"},
    "--pipeline-parallel-size": {"pipeline_parallel_size": 2},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bert")
    save_encoder(path, "bert")
    return path


def test_every_row_is_tested() -> None:
    assert set(REFUSED) == {row.name for row in ENCODER_REFUSALS if row.area == "encoder"}


@pytest.mark.parametrize("flag", REFUSED)
def test_what_encoders_cannot_do_is_refused(folder: Path, flag: str) -> None:
    config = read_model_config(folder)
    check_encoder(Settings(enable_graphs=True, tensor_parallel_size=2), config)
    with pytest.raises(EngineStartError, match=f"BertModel: {flag} is not supported: "):
        check_encoder(Settings(**REFUSED[flag]), config)


def test_a_step_holds_the_longest_prompt(folder: Path) -> None:
    with pytest.raises(EngineStartError, match="size=100 is below the longest prompt of 320"):
        TinyEngine(folder, max_batch_tokens_size=100)
    engine = TinyEngine(folder, max_batch_tokens_size=100, max_seq_len=100)
    assert engine.ready.max_model_len == 100
    with pytest.raises(RequestError, match="101 tokens is longer than the longest sequence of 100"):
        engine.add_request(random_prompt(101), PoolingParams())


def test_an_encoder_generates_nothing(folder: Path) -> None:
    with pytest.raises((TaskError, UnsupportedModelError), match="this model can embed"):
        TinyEngine(folder, task="generate")
    engine = TinyEngine(folder)
    with pytest.raises(RequestError, match="is served for embed, not to generate"):
        engine.add([5, 6])


def test_an_encoder_that_does_not_say_how_to_pool(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert TinyEngine(folder).ready.pooling == PoolingParams(pooling_type="mean", normalize=True)
    assert "has no modules.json: embeddings are normalised means" in caplog.text


def test_explain_says_that_there_is_no_cache(folder: Path) -> None:
    device, settings = resolve_device("cpu"), Settings(model=str(folder))
    text = explain(folder, device=device, settings=settings)
    assert "attention: both ways over whole prompts" in text
    assert explain_cache(settings, device) == "KV cache: none; longest prompt 320 tokens"
    assert explain_graphs(settings, device).startswith("graphs: none: a CPU step")


def test_explain_counts_graphs_of_whole_prompts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture_on_cpu(monkeypatch)
    settings = Settings(model=str(folder), enable_graphs=True, max_batch_tokens_size=16384)
    text = explain_graphs(settings, resolve_device("cpu"))
    assert text.startswith("graphs: 33, of whole prompts of up to 4096 tokens; about ")
