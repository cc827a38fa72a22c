# SPDX-License-Identifier: Apache-2.0
"""Scales of cached keys and values that a checkpoint brings for a KV cache of 8-bit floats."""

from __future__ import annotations

import math
import re
from collections import defaultdict

from rtp_llm.loader.checkpoint import Checkpoint, CheckpointError
from rtp_llm.loader.read_tensor import read_numbers
from rtp_llm.model_folder import name_of
from rtp_llm.models.config import ModelConfig

# Names of compressed-tensors, of ModelOpt (k_proj.k_scale), of vLLM (attn.k_scale), of AutoFP8
# (kv_scale for both) and of old compressed-tensors (k_proj.output_scale).
_NAME = re.compile(
    r"(?P<attention>.*\.(?:self_attn|mixer)\.)"
    r"(?:(?:attn\.|[a-z_]+_proj\.)?(?P<which>k|v|kv)_scale|(?P<old>k|v)_proj\.output_scale)"
)
# Of queries and of the probabilities of attention, which stay in the type of the activations.
_UNUSED = re.compile(
    r".*\.(?:self_attn|mixer)\."
    r"(?:(?:attn\.|[a-z_]+_proj\.)?q_scale|q_proj\.output_scale|(?:attn\.)?prob(?:_output)?_scale)"
)
_NUMBERS = "fp8"
_MOST = 2**16  # far more than any layer has heads


def cache_scales(config: ModelConfig, checkpoint: Checkpoint) -> dict[str, tuple[float, float]]:
    """The scales of keys and of values by the path of each attention ("model....self_attn.").

    Of scales for each head the largest is taken: the numbers are floats, so the others of the layer
    are held as exactly. Layers that were not calibrated, and caches of other numbers, have none.
    Raises CheckpointError for a tensor too large for scales, without reading it.
    """
    if config.stored is not None and config.stored.cached not in ("", _NUMBERS):
        return {}
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for name, entry in checkpoint.tensors.items():
        match = _NAME.fullmatch(name)
        if match is None or not entry.dtype.is_floating_point:
            continue
        if math.prod(entry.shape) > _MOST:
            raise CheckpointError(
                f"{entry.file}: {name_of(name)} {list(entry.shape)} has more than {_MOST} numbers, "
                "too many for scales of the KV cache"
            )
        scale = float(read_numbers(entry).float().max()) if entry.size else 0.0
        if 0 < scale < float("inf"):
            found[match["attention"]][match["which"] or match["old"]] = scale
    return {path: _pair(scales) for path, scales in found.items()}


def _pair(scales: dict[str, float]) -> tuple[float, float]:
    """Of keys and values; where one is missing, the other is for both."""
    keys = scales.get("k", scales.get("kv", scales.get("v", 1.0)))
    return keys, scales.get("v", scales.get("kv", keys))


def is_attention_scale(name: str) -> bool:
    """Whether a tensor has such scales, or those of queries or probabilities, which have no use."""
    return any(pattern.fullmatch(name) for pattern in (_NAME, _UNUSED))


def explain_scales(config: ModelConfig, checkpoint: Checkpoint, caches_fp8: bool) -> str:
    """What becomes of such scales, for `rtp-llm explain`; empty if there are none."""
    if not any(map(_NAME.fullmatch, checkpoint.tensors)):
        return ""
    if not cache_scales(config, checkpoint):
        cached = config.stored.cached if config.stored else ""
        why = f"the checkpoint means them for {cached}" if cached not in ("", _NUMBERS) else "unset"
        return f"; its k_scale and v_scale are not used: {why}"
    if not caches_fp8:
        return "; its k_scale and v_scale are for --kv-cache-dtype fp8_e4m3"
    return ", keys and values divided by its k_scale and v_scale"
