# SPDX-License-Identifier: Apache-2.0
"""Loads models: from a model folder to a model with its weights."""

from __future__ import annotations

from rtp_llm.loader.checkpoint import CheckpointError
from rtp_llm.loader.load import explain, load_model, plan_stages
from rtp_llm.loader.progress import LoadProgress, Progress, Report
from rtp_llm.loader.resolved import resolve
from rtp_llm.loader.weight_checks import WeightError

__all__ = [
    "CheckpointError",
    "LoadProgress",
    "Progress",
    "Report",
    "WeightError",
    "explain",
    "load_model",
    "plan_stages",
    "resolve",
]
