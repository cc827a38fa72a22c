"""One model on two GPUs gives the tokens of one; skipped with fewer."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.testing.usable_gpu import usable_gpus

# The packages of the engine's link are not part of every image that has a GPU.
pytest.importorskip("msgspec")
pytest.importorskip("zmq")
GPU, COUNT = usable_gpus()
pytestmark = pytest.mark.skipif(COUNT < 2, reason=f"{COUNT} usable GPUs")
CASES: dict[str, dict[str, Any]] = {
    "plain llama": {},
    "plain qwen3": {"enable_cuda_graph": False, "enable_overlap": False},
    "plain qwen3_moe": {},
    "ngram llama": {},
    "mtp deepseek_v3": {},
}


@pytest.mark.parametrize("named", CASES)
def test_the_tokens_of_one(named: str, tmp_path: Path) -> None:
    from rtp_llm.engine.drafting_models_for_tests import everything, save_drafting_model
    from rtp_llm.engine.tensor.tensor_for_tests import SMALL, check_alike, ranks
    from rtp_llm.testing.tiny_engine import TinyEngine

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


def test_a_server_whose_second_gpu_is_lost(tmp_path: Path) -> None:
    from rtp_llm.engine.grammars_for_tests import save_spelling_model
    from rtp_llm.testing.model_folders import CHATML
    from rtp_llm.testing.server_processes import REAL, Stream, engines, other_ranks, process

    save_spelling_model(tmp_path, max_position_embeddings=30_000)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML}))
    flags = ("--tensor-parallel-size", "2", "--device-type", GPU, "--restart-engine", "0")
    with process(*flags, "--served-model-name", "tiny", command=REAL, model=tmp_path) as server:
        stream = Stream(server.url, model="tiny", max_tokens=25_000)
        (engine,) = engines(server.process.pid)
        (rank,) = other_ranks(engine)
        killed = time.monotonic()
        os.kill(rank, signal.SIGKILL)
        assert stream.events()[-1]["error"]["code"] == "engine_dead"
        assert time.monotonic() - killed < 3
        assert server.exit_code() == 1
