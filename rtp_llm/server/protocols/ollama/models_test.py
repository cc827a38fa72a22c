# SPDX-License-Identifier: Apache-2.0
"""/api/tags, /api/ps, /api/show and /api/version."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rtp_llm.server.protocols.ollama.answers import OllamaProcesses, OllamaShowAnswer, OllamaTags
from rtp_llm.server.protocols.ollama.names import tagged
from rtp_llm.testing.gguf.vocabularies import byte_level_values
from rtp_llm.testing.gguf.writer import Tensor as GgufTensor
from rtp_llm.testing.gguf.writer import write
from rtp_llm.testing.model_folders import byte_level, write_folder
from rtp_llm.testing.server.agent_clients import TEMPLATE, agents
from rtp_llm.testing.server.fake_engine import FakeEngine, say
from rtp_llm.testing.server.serving import run, served
from rtp_llm.text.tokenizer import Tokenizer

CONFIG = {
    "eos_token_id": 4,
    "model_type": "qwen3",
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize(
    ("served_name", "name"),
    [("demo", "demo:latest"), ("demo:8b", "demo:8b"), ("a:1/demo", "a:1/demo:latest")],
)
def test_names_have_a_tag(served_name: str, name: str) -> None:
    assert tagged(served_name) == name


@run
async def test_lists_and_details_of_a_model(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path / "model",
        byte_level(),
        config=CONFIG,
        generation_config={"temperature": 0.6, "top_k": 20},
    )
    (folder / "model.safetensors").write_bytes(bytes(3_000_000))
    tokenizer = Tokenizer.from_folder(folder)
    engine = FakeEngine(say(tokenizer, "Hi."))
    async with served(engine, tokenizer, model=str(folder), served_model_name="tiny") as server:
        get, post = server.client.get, server.post
        (listed,) = msgspec.json.decode((await get("/api/tags")).content, type=OllamaTags).models
        assert (listed.name, listed.model, listed.size) == ("tiny:latest", "tiny:latest", 3_000_000)
        assert (listed.details.family, listed.details.parameter_size) == ("qwen3", "2M")
        assert listed.details.quantization_level == "BF16" and len(listed.digest) == 64
        answer = await get("/api/ps")
        (running,) = msgspec.json.decode(answer.content, type=OllamaProcesses).models
        assert (running.name, running.context_length) == ("tiny:latest", 256)
        for body in ({"model": "tiny"}, {"model": "tiny:latest"}, {"name": "tiny"}):
            answer = await post("/api/show", **body, verbose=True)
            shown = msgspec.json.decode(answer.content, type=OllamaShowAnswer)
        assert shown.model_info["general.architecture"] == "qwen3"
        assert shown.model_info["qwen3.context_length"] == 256
        assert shown.model_info["qwen3.attention.head_count_kv"] == 2
        assert shown.capabilities == ["completion", "embedding"]
        parameters = dict(line.split() for line in shown.parameters.splitlines())
        assert parameters == {"num_ctx": "256", "temperature": "0.6", "top_k": "20"}
        answer = await post("/api/chat", model="tiny:latest", messages=[], stream=False)
        assert answer.json()["model"] == "tiny:latest"
        assert (await get("/api/version")).json() == {"version": "0.12.11"}
        engine.ready = None
        assert (await get("/api/ps")).json() == {"models": []}
        assert (await post("/api/show")).status_code == 503


@run
async def test_what_a_model_can_do() -> None:
    async with agents() as case:
        shown = (await case.server.post("/api/show", model="demo")).json()
        assert shown["capabilities"] == ["completion", "embedding", "tools", "thinking"]
        assert shown["template"] == TEMPLATE


@run
async def test_a_gguf_file_is_described_by_its_metadata(tmp_path: Path) -> None:
    metadata = {"general.architecture": "qwen3", "general.file_type": 15, "qwen3.block_count": 2}
    tensors = {"token_embd.weight": GgufTensor("Q4_K", (10, 256))}
    file = tmp_path / "Tiny-Q4_K_M.gguf"
    write(file, {**metadata, **byte_level_values("qwen2")}, tensors)
    tokenizer = Tokenizer.from_folder(file)
    engine = FakeEngine(say(tokenizer, "Hi."))
    async with served(engine, tokenizer, model=str(file), served_model_name="tiny") as server:
        answer = await server.client.post("/api/show", json={"model": "tiny"})
        shown = msgspec.json.decode(answer.content, type=OllamaShowAnswer)
        details = shown.details
        assert (details.format, details.family) == ("gguf", "qwen3")
        assert (details.parameter_size, details.quantization_level) == ("2560", "Q4_K_M")
        assert shown.model_info["qwen3.block_count"] == 2
