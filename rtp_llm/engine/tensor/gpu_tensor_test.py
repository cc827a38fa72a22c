"""One model on two GPUs gives the tokens of one; skipped with fewer."""

from __future__ import annotations

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
