# SPDX-License-Identifier: Apache-2.0
"""Which tasks of the model an endpoint needs: it is served only by models with one of them."""

from __future__ import annotations

from collections.abc import Sequence

from rtp_llm.config.tasks import Task, wrong_task
from rtp_llm.engine.messages import EngineReady
from rtp_llm.request.params import POOLING_TASKS
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
    **dict.fromkeys(
        (
            "/v1/embeddings",
            "/v2/embed",
            "/embed",
            "/similarity",
            "/api/embed",
            "/api/embeddings",
        ),
        ("embed",),
    ),
    **dict.fromkeys(
        ("/rerank", "/v1/rerank", "/v2/rerank", "/score", "/v1/score"), ("score", "embed")
    ),
    "/classify": ("classify",),
    "/predict": ("classify", "score"),
    "/pooling": POOLING_TASKS,
}
# Where requests for a task go.
_ENDPOINTS_OF_TASK: dict[Task, str] = {
    "generate": "/v1/chat/completions and /v1/completions",
    "embed": "/v1/embeddings, /rerank and /score",
    "score": "/rerank and /score",
    "classify": "/classify",
    "token_classify": "/pooling",
    "reward": "/pooling",
}


def endpoints_of(tasks: Sequence[Task]) -> str:
    """The main endpoints of a model that is served for these tasks."""
    return ", ".join(dict.fromkeys(_ENDPOINTS_OF_TASK[task] for task in tasks))


def check_task(path: str, ready: EngineReady | None) -> None:
    """Raise ApiError 400 for an endpoint whose tasks the model is not served for, naming those that
    it answers; ``ready`` is None while it is loading."""
    needed = TASKS_OF_ENDPOINT.get(path)
    if needed is None or ready is None or not {*needed}.isdisjoint(ready.tasks):
        return
    raise bad_request(
        f"{path}: {wrong_task(needed[0], ready.tasks)}. It answers {endpoints_of(ready.tasks)}.",
        code="unsupported_task",
    )
