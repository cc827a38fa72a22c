# SPDX-License-Identifier: Apache-2.0
"""What models are served for: a model's possible tasks, of which --task chooses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

Task = Literal["generate", "embed", "score", "classify", "token_classify", "reward"]
TASKS: tuple[Task, ...] = get_args(Task)


class TaskError(ValueError):
    """The model cannot do the requested task; the message says which ones it can."""


def served_tasks(requested: str, possible: Sequence[Task]) -> tuple[Task, ...]:
    """The tasks to serve: ``requested`` is a task, "all" of the ``possible`` ones of a model,
    "pooling" for all but to generate, or "auto". That is the first one for a model that can
    generate, and otherwise all of them.

    Raises TaskError if the model cannot do it.
    """
    if requested == "all" or (requested == "auto" and "generate" not in possible):
        return tuple(possible)
    if requested == "pooling":
        return tuple(task for task in possible if task != "generate")
    chosen = [task for task in possible if requested in ("auto", task)]
    if not chosen:
        raise TaskError(f"--task {requested}: this model can {' and '.join(possible)}")
    return (chosen[0],)


def wrong_task(needed: Task, served: Sequence[str]) -> str:
    """Why a request for the task ``needed`` is refused where others are ``served``."""
    return (
        f"this model is served for {' and '.join(served)}, not to {needed}; if it can, "
        f"--task {needed} or --task all serves it for that"
    )
