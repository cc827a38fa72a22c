# SPDX-License-Identifier: Apache-2.0
"""The task of a model by the flags and arguments of other engines."""

from __future__ import annotations

import pytest

from rtp_llm.config.command_line import load_settings
from rtp_llm.config.tasks import TaskError, served_tasks


@pytest.mark.parametrize(
    ("flags", "task"),
    [
        (["--runner", "pooling"], "pooling"),
        (["--runner", "generate"], "generate"),
        (["--convert", "embed"], "embed"),
        (["--convert", "none"], "auto"),
        (["--is-embedding"], "pooling"),
        (["--embedding"], "embed"),
        (["--rerank"], "score"),
        (["--task", "embedding"], "embed"),
    ],
)
def test_flags(flags: list[str], task: str) -> None:
    assert load_settings([*flags, "folder"], {}).settings.task == task


def test_served_tasks() -> None:
    assert served_tasks("auto", ("generate", "embed")) == ("generate",)
    assert served_tasks("pooling", ("generate", "embed", "score")) == ("embed", "score")
    assert served_tasks("auto", ("score", "classify")) == ("score", "classify")
    assert served_tasks("all", ("generate", "embed")) == ("generate", "embed")
    with pytest.raises(TaskError, match="--task score: this model can generate and embed"):
        served_tasks("score", ("generate", "embed"))
