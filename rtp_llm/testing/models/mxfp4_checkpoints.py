# SPDX-License-Identifier: Apache-2.0
"""Turns folders of gpt-oss into MXFP4, as published checkpoints are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from rtp_llm.ops.moe.mxfp4_blocks import BLOCK
from rtp_llm.quantization.mxfp4 import quantize_rows
from rtp_llm.testing.light_transformers import light_transformers

with light_transformers():
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

CONFIG = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}


def store_as_mxfp4(folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Turn the experts in the one weight file of `folder` into MXFP4; other weights have `dtype`.

    The returned folder holds the same model in `dtype`, with the values that transformers gives
    the blocks.
    """
    wide = folder.with_name(f"{folder.name}-wide")
    shutil.copytree(folder, wide)
    stored, kept = {}, {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            stored[name] = kept[name] = tensor.to(dtype)
            continue
        experts, columns, rows = tensor.shape
        blocks, scales = quantize_rows(tensor.transpose(1, 2).reshape(experts * rows, columns))
        groups = columns // BLOCK
        stored[f"{name}_blocks"] = blocks.view(experts, rows, groups, BLOCK // 2)
        stored[f"{name}_scales"] = scales.view(experts, rows, groups)
        packed = stored[f"{name}_blocks"], stored[f"{name}_scales"]
        kept[name] = convert_moe_packed_tensors(*packed, dtype=dtype)
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    save_file(kept, wide / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = CONFIG
    (folder / "config.json").write_text(json.dumps(config))
    return wide
