# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts: selection, dispatcher, and the executors that compute the experts."""

from __future__ import annotations

from rtp_llm.device.choice import NoChoiceError
from rtp_llm.layers.moe.block import MoeBlock
from rtp_llm.layers.moe.config import ExpertNames, MoeConfig
from rtp_llm.layers.moe.dispatcher import (
    Dispatched,
    Dispatcher,
    ExpertHooks,
    LocalDispatcher,
    SelectionStep,
)
from rtp_llm.layers.moe.executor import Executor, ExpertContext, ExpertWeights
from rtp_llm.layers.moe.strategy import choose_executor, explain

__all__ = [
    "Executor",
    "ExpertContext",
    "ExpertHooks",
    "ExpertNames",
    "ExpertWeights",
    "LocalDispatcher",
    "MoeBlock",
    "MoeConfig",
    "NoChoiceError",
    "Dispatched",
    "Dispatcher",
    "SelectionStep",
    "choose_executor",
    "explain",
]
