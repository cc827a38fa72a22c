# SPDX-License-Identifier: Apache-2.0
"""Which task of the model an endpoint needs: it is served only by models with that task."""

from __future__ import annotations

from rtp_llm.config.tasks import Task, wrong_task
from rtp_llm.engine.messages import EngineReady
from rtp_llm.server.types.errors import bad_request

# By path; what is not listed here needs no task.
TASK_OF_ENDPOINT: dict[str, Task] = dict.fromkeys(
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
    "generate",
)


def check_task(path: str, ready: EngineReady | None) -> None:
    """Raise ApiError 400 for an endpoint whose task the model is not served for; ``ready`` is None
    while it is loading."""
    task = TASK_OF_ENDPOINT.get(path)
    if task is not None and ready is not None and task not in ready.tasks:
        raise bad_request(f"{path}: {wrong_task(task, ready.tasks)}.", code="unsupported_task")
