# SPDX-License-Identifier: Apache-2.0
"""Traces of a real engine process, asked for by its client."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from torch.profiler import ProfilerActivity

from rtp_llm.config.settings import Settings
from rtp_llm.device import resolve_device
from rtp_llm.engine import profiler
from rtp_llm.engine.client.engine_client import EngineClient
from rtp_llm.engine.messages import EngineDeadError, EngineStartError
from rtp_llm.engine.profile_messages import ProfilerError
from rtp_llm.engine.profiler import Profiler
from rtp_llm.testing.engine.client_calls import collect, request
from rtp_llm.testing.models.transformers_models import save_model

pytestmark = pytest.mark.usefixtures("forked_processes")


def names_in(file: str) -> list[str]:
    trace: dict[str, Any] = json.loads(gzip.decompress(Path(file).read_bytes()))
    return [event.get("name", "") for event in trace["traceEvents"]]


def settings(model: Path, **more: Any) -> Settings:
    return Settings(model=str(model), kv_cache_mem_mb=4, max_batch_tokens_size=256, **more)


def test_a_trace_has_the_operators_of_the_steps_in_between(tmp_path: Path) -> None:
    save_model(tmp_path / "model", "llama")
    folder = tmp_path / "new" / "traces"

    async def run() -> None:
        client = EngineClient()
        await client.start(settings(tmp_path / "model", profiler_dir=str(folder)))
        try:
            await asyncio.wait_for(profile(client), 200)
        finally:
            await client.close()
        with pytest.raises(EngineDeadError):
            await client.profile(start=True)

    async def generate(client: EngineClient) -> None:
        await collect(client.generate(request(client, 5, 6, max_tokens=8, ignore_eos=True)))

    async def profile(client: EngineClient) -> None:
        with pytest.raises(ProfilerError, match="start it first"):
            await client.profile(start=False)
        counts = []
        for steps in (1, 3):
            (begun,) = await client.profile(start=True)
            assert "CPU" in begun.activities
            with pytest.raises(ProfilerError, match="runs already"):
                await client.profile(start=True)
            for _ in range(steps):
                await generate(client)
            (done,) = await client.profile(start=False)
            counts.append(names_in(done.file).count("rtp_llm::paged_attention"))
            await generate(client)  # which no trace has
        assert counts[0] > 0 and counts[1] == 3 * counts[0]
        assert len([*folder.iterdir()]) == 2

    asyncio.run(run())


def test_an_engine_without_a_folder_has_no_profiler(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")

    async def run() -> None:
        client = EngineClient()
        await client.start(settings(tmp_path))
        try:
            with pytest.raises(ProfilerError, match="--profiler-dir"):
                await client.profile(start=True)
        finally:
            await client.close()

    asyncio.run(run())


def test_what_torch_cannot_record_is_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    device: Any = SimpleNamespace(profiler_activity=ProfilerActivity.XPU)
    monkeypatch.setattr(profiler, "supported_activities", lambda: {ProfilerActivity.CPU})
    made = Profiler(tmp_path, device)
    assert "records no XPU activity" in caplog.text
    assert made.start().activities == ("CPU",)
    assert Path(made.stop().file).parent == tmp_path
    both = {ProfilerActivity.CPU, ProfilerActivity.XPU}
    monkeypatch.setattr(profiler, "supported_activities", lambda: both)
    asked: dict[str, Any] = {}
    monkeypatch.setattr(profiler, "profile", lambda **given: asked.update(given) or Mock())
    assert Profiler(tmp_path, device).start().activities == ("CPU", "XPU")
    assert {*asked["activities"]} == both


def test_a_folder_that_cannot_be_made_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        Profiler(tmp_path / "file" / "traces", resolve_device())
    save_model(tmp_path / "model", "llama")

    async def run() -> None:
        with pytest.raises(EngineStartError, match="traces"):
            place = str(tmp_path / "file" / "traces")
            await EngineClient().start(settings(tmp_path / "model", profiler_dir=place))

    asyncio.run(run())
