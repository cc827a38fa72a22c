"""Mixtures of experts: selection, the way to the experts (router), and what computes them."""

from __future__ import annotations

from rtp_llm.device.choice import NoChoiceError
from rtp_llm.layers.moe.block import MoeBlock
from rtp_llm.layers.moe.config import ExpertNames, MoeConfig
from rtp_llm.layers.moe.executor import Executor, ExpertContext, ExpertWeights
from rtp_llm.layers.moe.router import ExpertHooks, LocalRouter, Routed, Router, SelectionStep
from rtp_llm.layers.moe.strategy import choose_executor, explain

__all__ = [
    "Executor",
    "ExpertContext",
    "ExpertHooks",
    "ExpertNames",
    "ExpertWeights",
    "LocalRouter",
    "MoeBlock",
    "MoeConfig",
    "NoChoiceError",
    "Routed",
    "Router",
    "SelectionStep",
    "choose_executor",
    "explain",
]
