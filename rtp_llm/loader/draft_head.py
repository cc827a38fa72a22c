# SPDX-License-Identifier: Apache-2.0
"""The weights of a draft head under one set of names, whatever the checkpoint calls them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from rtp_llm.loader.checkpoint import Checkpoint, CheckpointError, stored_tensors
from rtp_llm.models.causal_lm import CausalLM
from rtp_llm.models.config import Eagle3Config, ModelConfig
from rtp_llm.models.refusals import refuse

_PREFIX = "eagle3."
_OFFSETS = "d2t"
# Names in a multi-token prediction layer that follows the model's other layers. All its other
# tensors are those of an ordinary layer, or copies of the model's own.
_MTP_NAMES = {
    "enorm.weight": "pre_fc_norm_embedding.weight",
    "hnorm.weight": "pre_fc_norm_hidden.weight",
    "eh_proj.": "fc.",
    "shared_head.norm.weight": "norm.weight",
}
_COPIES = ("embed_tokens.", "shared_head.head.")


def with_head(config: ModelConfig, checkpoint: Checkpoint) -> tuple[ModelConfig, Checkpoint]:
    """Add the draft head's tensors to the checkpoint, with names under "mtp." or "eagle3."."""
    if config.draft_layers:
        return config, _with_mtp(config, checkpoint)
    eagle3 = config.eagle3
    return (config, checkpoint) if eagle3 is None else _with_eagle3(config, eagle3, checkpoint)


def _with_mtp(config: ModelConfig, checkpoint: Checkpoint) -> Checkpoint:
    """Rename the layer's tensors to Qwen's names if the checkpoint uses DeepSeek's."""
    prefix = f"model.layers.{config.num_layers}."
    names = (*checkpoint.tensors, *checkpoint.unreadable)
    made = {name: _mtp_name(name, prefix) for name in names}
    tensors = checkpoint.tensors.items()
    return replace(
        checkpoint,
        tensors={made[name]: replace(entry, name=made[name]) for name, entry in tensors},
        unreadable={made[name]: kind for name, kind in checkpoint.unreadable.items()},
    )


def _mtp_name(name: str, prefix: str) -> str:
    own = name.removeprefix(prefix)
    if own == name or own.startswith(_COPIES):
        return name
    for theirs, ours in _MTP_NAMES.items():
        if own.startswith(theirs):
            return f"mtp.{ours}{own.removeprefix(theirs)}"
    return f"mtp.layers.0.{own}"


def _with_eagle3(
    config: ModelConfig, eagle3: Eagle3Config, checkpoint: Checkpoint
) -> tuple[ModelConfig, Checkpoint]:
    head = Checkpoint.open(eagle3.folder)
    owns = "embed_tokens.weight" in head.tensors
    if not owns and eagle3.own.hidden_size != eagle3.capture_size:
        raise refuse(
            "draft model of another kind",
            f"{eagle3.folder} has no embed_tokens, and its hidden_size {eagle3.own.hidden_size} "
            f"is not the model's {eagle3.capture_size}",
        )
    tensors = {
        f"{_PREFIX}{name}": replace(entry, name=f"{_PREFIX}{name}")
        for name, entry in head.tensors.items()
    }
    unreadable = {f"{_PREFIX}{name}": kind for name, kind in head.unreadable.items()}
    merged = replace(
        checkpoint,
        tensors=checkpoint.tensors | tensors,
        unreadable=checkpoint.unreadable | unreadable,
    )
    return replace(config, eagle3=replace(eagle3, own_embedding=owns)), merged


def load_vocabulary(model: CausalLM) -> None:
    """Load the map from the head's tokens to the model's; without d2t the vocabularies agree.

    Raises CheckpointError if the offsets are malformed or point outside the vocabulary.
    """
    eagle3, head = model.config.eagle3, model.drafts
    if eagle3 is None or head is None:
        return
    offsets = _read_offsets(eagle3.folder)
    if offsets is None:
        if eagle3.vocab_size == model.config.vocab_size:
            return
        raise CheckpointError(f"{eagle3.folder} has no {_OFFSETS}: draft tokens have no meaning")
    ids = torch.arange(eagle3.vocab_size) + offsets if len(offsets) == eagle3.vocab_size else None
    if ids is None or int(ids.min()) < 0 or int(ids.max()) >= model.config.vocab_size:
        raise CheckpointError(
            f"{_OFFSETS} in {eagle3.folder} must have {eagle3.vocab_size} offsets that lead to "
            f"tokens below {model.config.vocab_size}"
        )
    head.get_buffer(_OFFSETS).copy_(offsets)


def _read_offsets(folder: Path) -> torch.Tensor | None:
    """The offsets as int64 of any length, or None if the folder has none."""
    for file, stored in stored_tensors(folder):
        if stored.name != _OFFSETS:
            continue
        if stored.dtype != "I64":
            raise CheckpointError(f"{_OFFSETS} in {file} is {stored.dtype}, not I64")
        count = math.prod(stored.shape)
        return torch.from_numpy(np.fromfile(file, "<i8", count, offset=stored.offset))
    return None
