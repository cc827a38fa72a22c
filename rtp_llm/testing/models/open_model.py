# SPDX-License-Identifier: Apache-2.0
"""Models in folders that tests wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.device import Device, resolve_device
from rtp_llm.distributed.tensor_parallel import SINGLE, TensorParallel
from rtp_llm.layers.moe import ExpertHooks
from rtp_llm.loader import Progress, load_model
from rtp_llm.models.causal_lm import CausalLM


def model_settings(dtype: torch.dtype = torch.float32, **settings: Any) -> ModelSettings:
    """The settings of a model of this number type."""
    return ModelSettings(dtype=str(dtype).removeprefix("torch."), **settings)


def open_model(
    folder: Path,
    dtype: torch.dtype = torch.float32,
    *,
    device: Device | None = None,
    experts: ExpertHooks | None = None,
    tensor_parallel: TensorParallel = SINGLE,
    progress: Progress | None = None,
    mtp: bool = False,
    eagle3: str = "",
    draft_model: str = "",
    **settings: Any,
) -> CausalLM:
    """The model in `folder`, on the CPU unless a device is given; see load_model."""
    return load_model(
        folder,
        device=device or resolve_device("cpu"),
        settings=model_settings(dtype, **settings),
        experts=experts,
        tensor_parallel=tensor_parallel,
        progress=progress,
        mtp=mtp,
        eagle3=eagle3,
        draft_model=draft_model,
    )
