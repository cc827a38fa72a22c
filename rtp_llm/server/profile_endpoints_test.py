# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import msgspec

from rtp_llm.server.types import openai_answers as responses
from rtp_llm.testing.server.serving import run, served


@run
async def test_a_profile_is_started_and_stopped() -> None:
    async with served(profiler_dir="traces") as server:
        for path, kind, status in (
            ("/stop_profile", responses.ErrorAnswer, 409),
            ("/start_profile", responses.ProfileStarted, 200),
            ("/start_profile", responses.ErrorAnswer, 409),
            ("/stop_profile", responses.ProfileStopped, 200),
        ):
            answer = await server.client.post(path)
            assert answer.status_code == status
            msgspec.json.decode(answer.content, type=kind)
        assert answer.json() == {"files": ["trace.json.gz"]}
        refused = await server.post("/start_profile", num_steps=3)
        assert refused.status_code == 400 and "no fields" in refused.text
        paths = (await server.client.get("/openapi.json")).json()["paths"]
        assert "409" in paths["/start_profile"]["post"]["responses"]
        server.engine.die()
        assert (await server.client.post("/start_profile")).status_code == 503


@run
async def test_without_a_folder_the_endpoints_are_not_there() -> None:
    async with served() as server:
        answer = await server.client.post("/start_profile")
        assert answer.status_code == 404 and "--profiler-dir" in answer.text
