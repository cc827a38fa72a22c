# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import msgspec

from rtp_llm.config.tasks import Task
from rtp_llm.server.endpoint.endpoint_tasks import TASKS_OF_ENDPOINT
from rtp_llm.testing.server.serving import CHAT, run, served

# Also of models that do not generate.
_NEED_NO_TASK = {"/tokenize", "/detokenize", "/api/show", "/v1/responses/{response_id}/cancel"}


@run
async def test_every_endpoint_needs_a_model_with_its_task() -> None:
    async with served() as server:
        document = (await server.client.get("/openapi.json")).json()
        posts = {path for path, methods in document["paths"].items() if "post" in methods}
        assert posts - _NEED_NO_TASK == set(TASKS_OF_ENDPOINT)
        assert server.engine.ready is not None
        assert (await server.client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        for path, (needed, *_) in TASKS_OF_ENDPOINT.items():
            served_for: tuple[Task, ...] = ("embed",) if needed == "generate" else ("generate",)
            server.engine.ready = msgspec.structs.replace(server.engine.ready, tasks=served_for)
            answer = await server.client.post(path, json=CHAT)
            assert answer.status_code == 400, path
            text = answer.json()["error"]
            message = text if isinstance(text, str) else text["message"]
            assert f"{path}: this model is served for {served_for[0]}, not to" in message
            right = "/v1/embeddings" if served_for == ("embed",) else "/v1/chat/completions"
            assert f"It answers {right}" in answer.text
        answer = await server.client.post("/tokenize", json={"prompt": "x"})
        assert answer.status_code == 200
