# SPDX-License-Identifier: Apache-2.0
"""Which tasks of the model an endpoint needs: it is served only by models with one of them."""

from __future__ import annotations

from rtp_llm.config.tasks import Task, wrong_task
from rtp_llm.engine.messages import EngineReady
from rtp_llm.server.types.errors import bad_request

# By path; what is not listed here needs no task.
TASKS_OF_ENDPOINT: dict[str, tuple[Task, ...]] = {
    **dict.fromkeys(
        (
            "/v1/chat/completions",
            "/v1/chat/completions/batch",
            "/v1/chat/completions/render",
            "/v1/completions",
            "/v1/completions/render",
            "/invocations",
            "/v1/responses",
            "/v1/responses/input_tokens",
            "/v1/messages",
            "/v1/messages/count_tokens",
            "/api/chat",
            "/api/generate",
            "/infill",
        ),
        ("generate",),
    ),
    "/v1/embeddings": ("embed",),
}
# Where requests for a task go.
_ENDPOINTS_OF_TASK: dict[str, str] = {
    "generate": "/v1/chat/completions and /v1/completions",
    "embed": "/v1/embeddings",
}


def check_task(path: str, ready: EngineReady | None) -> None:
    """Raise ApiError 400 for an endpoint whose tasks the model is not served for, naming those that
    it answers; ``ready`` is None while it is loading."""
    needed = TASKS_OF_ENDPOINT.get(path)
    if needed is None or ready is None or not {*needed}.isdisjoint(ready.tasks):
        return
    answers = " and ".join(filter(None, map(_ENDPOINTS_OF_TASK.get, ready.tasks)))
    raise bad_request(
        f"{path}: {wrong_task(needed[0], ready.tasks)}. It answers {answers}.",
        code="unsupported_task",
    )
