# SPDX-License-Identifier: Apache-2.0
"""Checks a checkpoint against the model that config.json describes, before allocating memory."""

from __future__ import annotations

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch

from rtp_llm.layers import WeightTarget, weight_targets
from rtp_llm.layers.weights.stored_config import StoredModules
from rtp_llm.loader.cache_scales import is_attention_scale
from rtp_llm.loader.checkpoint import Checkpoint, TensorEntry
from rtp_llm.loader.stored_formats import place_of
from rtp_llm.model_folder import ModelFilesError, name_of
from rtp_llm.models.causal_lm import ModelOptions
from rtp_llm.models.config import ModelConfig
from rtp_llm.models.refusals import refuse
from rtp_llm.models.registry import model_class

_LISTED = 100
# A model with far more weights than the checkpoint has tensors is not worth planning.
_MAX_MISSING = 100_000
# Numbers that weights are packed in.
_PACKED = {torch.int8: "I8", torch.uint8: "U8", torch.int32: "I32"}

_logger = logging.getLogger("rtp_llm.loader")


class WeightError(ModelFilesError):
    """Weights are missing, unknown, of the wrong shape or out of range; the message names them."""


def check_weights(
    config: ModelConfig, options: ModelOptions, checkpoint: Checkpoint
) -> dict[str, list[WeightTarget]]:
    """Raise unless the checkpoint has every weight of the model, in its shape; return the targets
    of a planned model by name.

    WeightError names all missing, unknown and wrongly shaped weights; UnsupportedModelError names a
    weight of an unsupported dtype. Tensors that are not used are logged.
    """
    _check_count(config, checkpoint)
    # Planned without memory and with all experts: names and shapes do not depend on placement.
    settings = replace(options.settings, moe_strategy="auto", max_seq_len=2)
    planned = replace(options, settings=settings, planned=True, experts=None, stage=None)
    model = model_class(config.architecture)(config, planned)
    targets: dict[str, list[WeightTarget]] = defaultdict(list)
    for name, target in weight_targets(model):
        targets[name].append(target)
    for name in targets:
        if stored := checkpoint.unreadable.get(name):
            raise refuse("other number type", f"{name} is stored as {stored}", config.architecture)
        entry = checkpoint.tensors.get(name)
        if entry is not None and not _has_weights(entry, options):
            stored = _PACKED[entry.dtype]
            found = f"{name} is stored as {stored} in {entry.file}"
            raise refuse("other number type", found, config.architecture)
    formats = config.stored or StoredModules(())

    def ignored(name: str) -> bool:
        return model.ignores(name) or formats.ignores(name) or is_attention_scale(name)

    _check(targets, checkpoint, ignored)
    return targets


def _has_weights(entry: TensorEntry, options: ModelOptions) -> bool:
    """Whether bytes and words are those of a stored format, and not numbers."""
    is_stored = place_of(entry.name, options.formats)[0] in options.formats
    return entry.dtype not in _PACKED or entry.change is not None or is_stored


def _check_count(config: ModelConfig, checkpoint: Checkpoint) -> None:
    """Raise WeightError early if there are far more layers and experts than tensors."""
    experts = 3 * config.moe.num_experts * sum(config.moe_layers) if config.moe else 0
    least, held = 2 * config.num_layers + experts, len(checkpoint.tensors)
    if least > held + _MAX_MISSING:
        count = 0 if config.moe is None else config.moe.num_experts
        raise WeightError(
            f"the weights in {checkpoint.folder} do not fit: config.json has "
            f"num_hidden_layers {config.num_layers} with {count} experts, so at least {least} "
            f"tensors, and there are {held}"
        )


def _check(
    targets: dict[str, list[WeightTarget]],
    checkpoint: Checkpoint,
    ignored: Callable[[str], bool],
) -> None:
    found = checkpoint.tensors
    missing = [name for name in targets if name not in found]
    unused = [name for name in (*found, *checkpoint.unreadable) if name not in targets]
    unknown = [name for name in unused if not ignored(name)]
    shapes = [
        f"{name} is {list(found[name].loaded_shape)}, not {list(places[0].shape)}"
        for name, places in targets.items()
        if name in found and found[name].loaded_shape != places[0].shape
    ]
    problems = [
        *_list("missing", missing),
        *_list("not known to this architecture", map(name_of, unknown)),
        *_list("wrongly shaped", shapes),
    ]
    if problems:
        lines = "\n  ".join(problems)
        raise WeightError(f"the weights in {checkpoint.folder} do not fit:\n  {lines}")
    if unused:
        _logger.info("%d tensors have no use here: %s", len(unused), _patterns(unused))


def _patterns(names: Iterable[str]) -> str:
    """List names, merging those that differ only in numbers: "layers.*.inv_freq (32)"."""
    counts = Counter(re.sub(r"\d+", "*", name) for name in names)
    return ", ".join(f"{name_of(pattern)} ({count})" for pattern, count in counts.items())


def _list(what: str, items: Iterable[str]) -> list[str]:
    listed = list(items)
    lines = [f"{what}: {item}" for item in listed[:_LISTED]]
    if len(listed) > _LISTED:
        lines.append(f"{what}: {len(listed) - _LISTED} more")
    return lines
