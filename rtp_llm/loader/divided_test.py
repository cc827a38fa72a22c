# SPDX-License-Identifier: Apache-2.0
"""Loading on one of several tensor-parallel ranks: what is read, and where it ends up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.device import resolve_device
from rtp_llm.distributed.group import Group
from rtp_llm.distributed.tensor_parallel import SINGLE, TensorParallel, planned_rank
from rtp_llm.loader import explain, staging, stream
from rtp_llm.loader.span import Span
from rtp_llm.loader.span_reader import Read, reader
from rtp_llm.models.causal_lm import CausalLM
from rtp_llm.models.config import UnsupportedModelError
from rtp_llm.ops.gemm.int8_layout import unpack
from rtp_llm.quantization.int8 import quantize_rows
from rtp_llm.testing.fp8_products import multiply_fp8_on_cpu
from rtp_llm.testing.models.fp8_checkpoints import store_as_fp8
from rtp_llm.testing.models.open_model import open_model
from rtp_llm.testing.models.transformers_models import save_model

torch.set_num_threads(2)

GROUP = cast(Group, object())  # loading sends nothing
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 128,
}


def on_rank(folder: Path, rank: int, size: int = 2, **opened: Any) -> Any:
    return open_model(folder, tensor_parallel=TensorParallel(rank, size, GROUP), **opened)


def part(tensor: Tensor, rank: int, axis: int = 0, size: int = 2) -> Tensor:
    return tensor.chunk(size, axis)[rank]


@pytest.mark.parametrize("kept", [torch.float32, torch.bfloat16])
def test_parts_are_where_they_belong(
    tmp_path: Path, kept: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_CACHED_BYTES", 3000)  # a few rows at a time
    save_model(tmp_path, "llama", attention_bias=True, mlp_bias=True, vocab_size=200, **SIZES)
    weights = load_file(tmp_path / "model.safetensors")
    at = "model.layers.1."
    for rank in range(2):
        model = on_rank(tmp_path, rank, dtype=kept)
        layer, mlp = model.model.layers[1].self_attn, model.model.layers[1].mlp
        for end in ("weight", "bias"):
            names = (f"{at}self_attn.{each}_proj.{end}" for each in "qkv")
            qkv = torch.cat([part(weights[name], rank) for name in names])
            assert torch.equal(getattr(layer.qkv_proj, end), qkv.to(kept))
            names = (f"{at}mlp.{each}_proj.{end}" for each in ("gate", "up"))
            gate_up = torch.cat([part(weights[name], rank) for name in names])
            assert torch.equal(getattr(mlp.gate_up_proj, end), gate_up.to(kept))
        for linear, name in ((layer.o_proj, "self_attn.o_proj"), (mlp.down_proj, "mlp.down_proj")):
            assert torch.equal(linear.weight, part(weights[f"{at}{name}.weight"], rank, 1).to(kept))
            assert (linear.bias is None) == (rank == 1), "the first rank adds it"
        rows = slice(0, 128) if rank == 0 else slice(128, 200)
        embedding = weights["model.embed_tokens.weight"][rows].to(kept)
        assert torch.equal(model.model.embed_tokens.weight, embedding)
        assert torch.equal(model.lm_head.product.weight, weights["lm_head.weight"][rows].to(kept))
        assert model.logit_columns == range(rows.start, rows.stop)


def test_ranks_with_the_same_kv_head_have_its_weights(tmp_path: Path) -> None:
    save_model(tmp_path, "qwen3", **SIZES)
    weights = load_file(tmp_path / "model.safetensors")
    for rank in range(4):
        layer = on_rank(tmp_path, rank, 4).model.layers[0].self_attn
        k = part(weights["model.layers.0.self_attn.k_proj.weight"], rank // 2)
        assert torch.equal(layer.qkv_proj.weight[128:256], k)
        assert layer.cache_spec().heads == 1


def numbers(model: CausalLM) -> int:
    """Bytes of all parameters."""
    return sum(parameter.nbytes for parameter in model.parameters())


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("llama", SIZES),
        ("qwen3", {**SIZES, "tie_word_embeddings": True}),
        ("qwen3_moe", {**SIZES, "moe_intermediate_size": 128}),
        ("deepseek_v3", {"hidden_size": 64, "moe_intermediate_size": 256, "vocab_size": 640}),
        ("qwen3_next", {**SIZES, "moe_intermediate_size": 128, "linear_key_head_dim": 64}),
    ],
    ids=str,
)
def test_a_rank_reads_no_more_than_its_part(
    tmp_path: Path, kind: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path, kind, **settings)
    alone = numbers(open_model(tmp_path))
    read: list[int] = []

    @contextmanager
    def counting(span: Span) -> Iterator[Read]:
        with reader(span) as inner:

            def counted(chunk: Span, memory: Tensor) -> None:
                read.append(memory.nbytes)
                inner(chunk, memory)

            yield counted

    monkeypatch.setattr(stream, "reader", counting)
    for rank in range(2):
        read.clear()
        model = on_rank(tmp_path, rank)
        everywhere = sum(
            parameter.nbytes
            for name, parameter in model.named_parameters()
            if "norm" in name or ".gate." in name or "qkv_a_proj" in name
        )
        assert sum(read) == numbers(model), "each byte of this rank, once"
        assert sum(read) <= 1.1 * (alone - everywhere) / 2 + everywhere


def test_int8_weights_are_those_of_the_part(tmp_path: Path) -> None:
    save_model(tmp_path, "llama", **SIZES)
    weights = load_file(tmp_path / "model.safetensors")
    for rank in range(2):
        down = on_rank(tmp_path, rank, quantization="int8").model.layers[2].mlp.down_proj
        expected = quantize_rows(part(weights["model.layers.2.mlp.down_proj.weight"], rank, 1))
        for ours, theirs in zip(unpack(down.weight, down.scale), expected, strict=True):
            assert torch.equal(ours, theirs)


def test_fp8_blocks_are_those_of_the_part(tmp_path: Path) -> None:
    (tmp_path / "fp8").mkdir()
    save_model(tmp_path / "fp8", "llama", **SIZES)
    wide = store_as_fp8(tmp_path / "fp8")
    weights = load_file(wide / "model.safetensors")
    for rank in range(2):
        layer = on_rank(tmp_path / "fp8", rank).model.layers[1]
        down = part(weights["model.layers.1.mlp.down_proj.weight"], rank, 1)
        assert torch.equal(layer.mlp.down_proj.weight, down)
        v = part(weights["model.layers.1.self_attn.v_proj.weight"], rank)
        assert torch.equal(layer.self_attn.qkv_proj.weight[-128:], v)


def test_fp8_blocks_that_are_multiplied_keep_their_scales(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    multiply_fp8_on_cpu(monkeypatch.setattr)
    (tmp_path / "fp8").mkdir()
    save_model(tmp_path / "fp8", "qwen3", **SIZES)
    store_as_fp8(tmp_path / "fp8", dtype=torch.bfloat16)
    weights = load_file(tmp_path / "fp8" / "model.safetensors")
    at = "model.layers.1."
    for rank in range(2):
        layer = on_rank(tmp_path / "fp8", rank, dtype=torch.bfloat16).model.layers[1]
        for end, ours in (("weight", "weight"), ("weight_scale_inv", "scale")):
            parts = [weights[f"{at}mlp.{name}_proj.{end}"] for name in ("gate", "up")]
            gate_up = torch.cat([part(each.view(torch.uint8), rank) for each in parts])
            assert torch.equal(getattr(layer.mlp.gate_up_proj, ours).view(torch.uint8), gate_up)
            o = part(weights[f"{at}self_attn.o_proj.{end}"], rank, 1).contiguous()
            kept = getattr(layer.self_attn.o_proj, ours)
            assert torch.equal(kept.view(torch.uint8), o.view(torch.uint8))


@pytest.mark.parametrize(
    ("kind", "settings", "fp8", "size", "message"),
    [
        ("llama", {}, False, 3, r"num_attention_heads 4 = 3 x 1 \+ 1.* 1, 2, 4 would not"),
        ("llama", {"intermediate_size": 111}, False, 2, r"intermediate_size 111 = 2 x 55 \+ 1"),
        ("llama", {"num_key_value_heads": 3, "num_attention_heads": 12, "hidden_size": 96}, False,
         4, r"num_key_value_heads 3: 4 = 3 x 1 \+ 1"),
        ("mixtral", {}, False, 4, r"the number of experts 6 = 4 x 1 \+ 2"),
        ("qwen3_next", {}, False, 4, r"linear_num_key_heads 2 = 4 x 0 \+ 2"),
        ("llama", SIZES | {"intermediate_size": 768}, True, 4,
         r"mlp\.gate_proj \(rows\) would be split at 192 of 768 = 1 x 128 \+ 64"),
        ("llama", SIZES | {"head_dim": 64}, True, 2,
         r"k_proj \(rows\) would be split at 64 of 128"),
    ],
    ids=str,
)  # fmt: skip
def test_sizes_without_equal_parts_are_refused(
    tmp_path: Path, kind: str, settings: dict[str, Any], fp8: bool, size: int, message: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_model(folder, kind, **settings)
    if fp8:
        store_as_fp8(folder)
    with pytest.raises(
        UnsupportedModelError, match=f"tensor parallelism of such sizes .*{message}"
    ):
        on_rank(folder, 0, size)


def explained(folder: Path, size: int) -> list[str]:
    settings = ModelSettings(dtype="float32")
    text = explain(
        folder, device=resolve_device("cpu"), settings=settings, tensor_parallel_size=size
    )
    return text.splitlines()


def test_what_a_rank_would_have_is_explained_without_ranks(tmp_path: Path) -> None:
    save_model(tmp_path, "qwen3_moe", **SIZES)
    one, two = explained(tmp_path, 1), explained(tmp_path, 2)
    token = 3 * 2 * 2 * 128 * 4  # layers, keys and values, heads of 128 floats
    assert f"KV cache: {token} bytes per token" in one
    assert f"KV cache: {token // 2} bytes per token on each of 2 ranks" in two
    experts = [next(line for line in text if line.startswith("experts for")) for text in (one, two)]
    assert experts[0].endswith("local dispatcher, 8 experts of 48:")
    assert experts[1].endswith("divided dispatcher, 4 experts of 48:")
    with pytest.raises(UnsupportedModelError, match=r"the number of experts 8 = 3 x 2 \+ 2"):
        explained(tmp_path, 3)


def test_planned_ranks_compute_nothing() -> None:
    ranks = planned_rank(2)
    with pytest.raises(AssertionError, match="planned"):
        ranks.all_reduce(torch.ones(2))
    with pytest.raises(AssertionError, match="planned"):
        ranks.all_gather(torch.ones(2, 2))
    assert planned_rank(1) is SINGLE


def test_random_weights_that_all_ranks_have_are_the_same(tmp_path: Path) -> None:
    save_model(tmp_path, "qwen3_moe", vocab_size=500)
    ranks = [on_rank(tmp_path, rank, load_format="dummy") for rank in range(2)]
    first, second = (model.model.layers[1] for model in ranks)
    assert torch.equal(first.mlp.gate.weight, second.mlp.gate.weight)
    assert not torch.equal(first.self_attn.o_proj.weight, second.self_attn.o_proj.weight)
    assert all(parameter.isfinite().all() for model in ranks for parameter in model.parameters())
