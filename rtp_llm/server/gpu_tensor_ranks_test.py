"""A server on two GPUs that loses one of them; skipped with fewer."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from rtp_llm.testing.usable_gpu import usable_gpus

# The server's packages are not part of every image that has a GPU.
for package in ("fastapi", "httpx", "tokenizers", "zmq"):
    pytest.importorskip(package)
GPU, COUNT = usable_gpus()
pytestmark = pytest.mark.skipif(COUNT < 2, reason=f"{COUNT} usable GPUs")


def test_a_rank_is_killed(tmp_path: Path) -> None:
    from rtp_llm.testing.model_folders import CHATML, byte_level
    from rtp_llm.testing.server_processes import REAL, Stream, engines, other_ranks, process
    from rtp_llm.testing.transformers_models import save_model

    tokenizer = byte_level()
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 30_000}
    save_model(tmp_path, "llama", eos_token_id=1, **sizes)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
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
