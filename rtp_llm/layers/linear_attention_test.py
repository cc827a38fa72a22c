# SPDX-License-Identifier: Apache-2.0
"""A gated delta net against transformers' module with the same weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rtp_llm.attention import BackendOptions, CacheGroups, ForwardBatch, GatedDeltaRuleBackend
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.device.capabilities import HOST, Capabilities
from rtp_llm.distributed.tensor_parallel import planned_rank
from rtp_llm.layers import (
    GatedDeltaNetShape,
    LayerOptions,
    RMSNorm,
    finish_loading,
    weight_targets,
)
from rtp_llm.layers.linear_attention import GatedDeltaNet
from rtp_llm.layers.weights.gguf_blocks import gguf_format
from rtp_llm.testing.capabilities import HOPPER, ROCM, XPU
from rtp_llm.testing.gguf.sized_blocks import sized_blocks, weights_of
from rtp_llm.testing.light_transformers import light_transformers

with light_transformers():
    from transformers import Qwen3_5TextConfig, Qwen3NextConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

CPU = torch.device("cpu")
# Heads of keys and values, their widths, tokens in the convolution.
SIZES = [(2, 4, 16, 16, 4), (1, 3, 24, 8, 2), (2, 2, 8, 40, 3), (1, 2, 128, 128, 4)]
every_size = pytest.mark.parametrize("sizes", SIZES, ids=str)
HIDDEN = 48
# Projections one by one, and rows of each key head together.
CLASSES: dict[str, tuple[Any, Any]] = {
    "qwen3_5": (Qwen3_5TextConfig, Qwen3_5GatedDeltaNet),
    "qwen3_next": (Qwen3NextConfig, Qwen3NextGatedDeltaNet),
}


def theirs(sizes: tuple[int, ...], kind: str = "qwen3_5") -> Any:
    key_heads, heads, key_size, value_size, kernel = sizes
    torch.manual_seed(3)
    config, module = CLASSES[kind]
    made = module(
        config(
            hidden_size=HIDDEN,
            num_hidden_layers=1,
            linear_num_key_heads=key_heads,
            linear_num_value_heads=heads,
            linear_key_head_dim=key_size,
            linear_value_head_dim=value_size,
            linear_conv_kernel_dim=kernel,
            rms_norm_eps=1e-5,
        ),
        0,
    )
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name in ("A_log", "dt_bias") or name.startswith("norm"):
                parameter.uniform_(0.3, 1.5)
            else:
                parameter.normal_(std=1.5 * parameter[0].numel() ** -0.5)
    return made


def ours(reference: Any, dtype: torch.dtype, states: str) -> GatedDeltaNet:
    settings = ModelSettings(dtype=str(dtype).removeprefix("torch."), mamba_ssm_cache_dtype=states)
    shape = GatedDeltaNetShape(
        hidden_size=HIDDEN,
        num_heads=reference.num_v_heads,
        num_key_heads=reference.num_k_heads,
        key_size=reference.head_k_dim,
        value_size=reference.head_v_dim,
        kernel_size=reference.conv_kernel_size,
        norm_eps=1e-5,
        interleaved=hasattr(reference, "in_proj_qkvz"),
    )
    requested = BackendOptions(HOST, dtype, dtype, 16, settings=settings)
    backend = GatedDeltaRuleBackend(shape.backend_config(requested))
    layer = shape.make(0, backend, LayerOptions(settings, CPU))
    assert isinstance(layer, GatedDeltaNet)
    weights = reference.state_dict()
    for name, target in weight_targets(layer):
        assert target.shape == weights[name].shape
        target.write(0, weights.pop(name))
    assert not weights
    return layer


class Steps:
    """One layer's cache, and steps over it: `lengths` counts the tokens of each sequence."""

    def __init__(self, layer: GatedDeltaNet, dtype: torch.dtype, sequences: int) -> None:
        spec = layer.cache_spec()
        groups = CacheGroups.of([spec])
        memory = torch.full(groups.specs[0].layer_shape(8, 16), 0xFF, dtype=torch.uint8)
        self.states = (spec.states(memory),)
        self.layer, self.dtype = layer, dtype
        self.lengths = [0] * sequences
        self.norm = RMSNorm(HIDDEN, 1e-6, LayerOptions(ModelSettings(dtype="float32"), CPU))
        self.norm.weight.data = torch.ones(HIDDEN, dtype=dtype)

    def __call__(self, parts: list[Tensor], padding: int = 0) -> list[Tensor]:
        """Rows of norm(part) through the layer, each part the next tokens of its sequence."""
        counts = [len(part) for part in parts]
        before = [0 if length == 0 else 1 for length in self.lengths]
        self.lengths = [n + count for n, count in zip(self.lengths, counts, strict=True)]
        blocks = torch.arange(1, len(parts) + 1, dtype=torch.int32)
        empty = torch.empty(0, dtype=torch.int32)
        written: list[int] = []
        batch = ForwardBatch(
            token_ids=empty,
            positions=empty,
            cu_seqlens_q=torch.tensor([0, *counts]).cumsum(0).int(),
            seq_lens=torch.tensor(self.lengths, dtype=torch.int32),
            max_seqlen_q=max(counts),
            max_seqlen_k=max(self.lengths),
            slot_mapping=(empty,),
            block_table=(empty,),
            kv_cache=(empty,),
            layer_group=(0,),
            states=self.states,
            state_read=(torch.where(torch.tensor(before) > 0, blocks, -1),),
            state_write=(blocks,),
            on_written=written.append,
        )
        rows = torch.cat([*parts, torch.full((padding, HIDDEN), 3.0)]).to(self.dtype)
        out = self.layer(self.norm, rows.clone(), None, None, batch)
        assert written == [0]
        return list(out.split([*counts, padding]))[: len(counts)]


@every_size
@pytest.mark.parametrize("kind", CLASSES)
@torch.inference_mode()
def test_layers_give_what_transformers_gives(kind: str, sizes: tuple[int, ...]) -> None:
    reference = theirs(sizes, kind)
    step = Steps(ours(reference, torch.float32, "float32"), torch.float32, 2)
    hidden = [torch.randn(50, HIDDEN), torch.randn(31, HIDDEN)]
    expected = [reference(step.norm(part)[None])[0] for part in hidden]
    got: list[list[Tensor]] = [[], []]
    for begin, end in ((0, 20), (20, 21), (21, 24), (24, 40), (40, 50)):
        parts = step([part[begin:end] for part in hidden], padding=begin % 3)
        for made, part in zip(got, parts, strict=True):
            made.append(part)
    for made, right in zip(got, expected, strict=True):
        torch.testing.assert_close(torch.cat(made), right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("states", ["float32", "bfloat16"])
@torch.inference_mode()
def test_half_precision_is_as_close_as_transformers_is(states: str) -> None:
    reference = theirs(SIZES[0])
    layer = ours(reference, torch.bfloat16, states)
    assert layer.a_log.dtype is layer.dt_bias.dtype is torch.float32
    step = Steps(layer, torch.bfloat16, 1)
    assert step.states[0][1].dtype is getattr(torch, states)
    x = torch.randn(60, HIDDEN).bfloat16()
    normed = step.norm(x)
    exact = reference(normed[None].float())[0]
    rough = reference.bfloat16()(normed[None])[0].float() - exact
    parts = [step([x[:40]])[0], *(step([x[at : at + 1]])[0] for at in range(40, 60))]
    error = torch.cat(parts).float() - exact
    assert 0 < error.square().mean().sqrt() < 2 * rough.square().mean().sqrt()


@pytest.mark.parametrize("rank", [None, 0, 1])
def test_value_heads_that_blocks_do_not_let_go(rank: int | None) -> None:
    """Heads of 16 in blocks of 32: activations follow the order of the file on one rank; of two
    ranks each has the floats of its columns in the order of the layer."""
    key_heads, per_key, size = 4, 2, 16
    shape = GatedDeltaNetShape(HIDDEN, 8, key_heads, 16, size, 4, 1e-5, tiled_output=True)
    if rank is not None:
        shape = shape.on_rank(planned_rank(2) if rank == 0 else replace(planned_rank(2), rank=1))
    stored = gguf_format("Q8_0")
    settings = ModelSettings(dtype="float32", gguf_activations="float")
    options = LayerOptions(settings, CPU, formats={"out_proj": stored})
    backend = GatedDeltaRuleBackend(
        shape.backend_config(BackendOptions(HOST, torch.float32, torch.float32, 16))
    )
    layer = GatedDeltaNet(0, shape, backend, options)
    blocks = sized_blocks("Q8_0", (HIDDEN, key_heads * per_key * size), 1.0)
    target = dict(layer.checkpoint_targets("net."))["net.out_proj.blocks"]
    assert target.shape == blocks.shape
    target.write(0, blocks)
    finish_loading(layer)
    heads = weights_of("Q8_0", blocks).view(HIDDEN, per_key, key_heads, size).transpose(1, 2)
    own = slice(None) if rank is None else slice(2 * rank, 2 * rank + 2)
    expected = heads[:, own].flatten(1)
    x = torch.randn(5, shape.values)
    assert (layer.keeps_tiles, layer.out_proj.columns) == (rank is None, expected.shape[1])
    followed = layer.tiled.tiled(x) if layer.keeps_tiles else x
    torch.testing.assert_close(layer.out_proj(followed), x @ expected.T, rtol=1e-5, atol=1e-4)


def test_what_a_block_takes() -> None:
    """Qwen3-Next's sizes, in bytes that docs/hybrid.md names."""
    shape = GatedDeltaNetShape(2048, 32, 16, 128, 128, 4, 1e-6)
    options = BackendOptions(HOST, torch.bfloat16, torch.bfloat16, 16)
    layer = shape.make(
        0,
        GatedDeltaRuleBackend(shape.backend_config(options)),
        LayerOptions(ModelSettings(dtype="bfloat16"), CPU, planned=True),
    )
    spec = layer.cache_spec()
    assert spec is not None
    assert spec.block_bytes(16) == 2**21 + 2**18 + 2**16 + 11 * 8192 * 2 + 2 * 2048


@pytest.mark.parametrize("device", [HOPPER, ROCM, XPU], ids=str)
def test_devices_without_kernels_say_so(
    device: Capabilities, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = GatedDeltaNetShape(2048, 32, 16, 128, 128, 4, 1e-6)
    requested = BackendOptions(device, torch.bfloat16, torch.bfloat16, 16)
    config = shape.backend_config(requested)
    monkeypatch.setattr("rtp_llm.ops.has_kernel", lambda *_: False)
    answer = GatedDeltaRuleBackend.supports(config)
    assert not answer
    assert "has no causal_conv1d, gated_delta_rule for it" in answer.reason
    assert "--allow-reference-ops" in answer.reason
    monkeypatch.setattr("rtp_llm.ops.references_allowed", lambda: True)
    assert GatedDeltaRuleBackend.supports(config)
