# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import msgspec

from rtp_llm.server.endpoint.endpoint_tasks import TASK_OF_ENDPOINT
from rtp_llm.testing.server.serving import CHAT, run, served

# Also of models that do not generate.
_NEED_NO_TASK = {"/tokenize", "/detokenize", "/api/show", "/v1/responses/{response_id}/cancel"}


@run
async def test_every_endpoint_that_generates_needs_a_model_that_does() -> None:
    async with served() as server:
        document = (await server.client.get("/openapi.json")).json()
        posts = {path for path, methods in document["paths"].items() if "post" in methods}
        assert posts - _NEED_NO_TASK == set(TASK_OF_ENDPOINT)
        assert server.engine.ready is not None
        assert (await server.client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        server.engine.ready = msgspec.structs.replace(server.engine.ready, tasks=("embed",))
        for path in TASK_OF_ENDPOINT:
            answer = await server.client.post(path, json=CHAT)
            assert answer.status_code == 400, path
            assert f"{path}: this model is served for embed, not to generate" in answer.text
        answer = await server.client.post("/tokenize", json={"prompt": "x"})
        assert answer.status_code == 200
