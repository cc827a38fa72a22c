# SPDX-License-Identifier: Apache-2.0
"""Integer weights in groups on a GPU: products against the copy rate, bfloat16, Marlin and Machete.

Replays of graphs over weights that rotate, so that the L2 cache holds none of them; contenders take
turns, and each result is checked against a product in float32 first. The limit is the time to read
the packed weight, its scales and zero points at a copy's rate. `--vllm PATHS` (site-packages,
joined by colons) adds vLLM's kernels; `--step` times a step of the Qwen3-8B shape in a folder of
compressed-tensors with random codes instead.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from benchmark.gpu_time import captured, copy_bandwidth, the_gpu
from benchmark.report import Report, parser
from benchmark.rounds import interleave
from rtp_llm import ops
from rtp_llm.device import Device
from rtp_llm.ops.gemm.int_groups import dequantize, groups_in_order, pack_bytes
from rtp_llm.ops.gemm.tiled_wna16_layout import TiledWna16, pack

if TYPE_CHECKING:
    from benchmark.gpu_engine import GpuEngine

SHAPES = {
    "square": (8192, 8192),
    "qkv": (6144, 4096),
    "out": (4096, 4096),
    "gate, up": (24576, 4096),
    "down": (4096, 12288),
}
ROWS = (1, 8, 16, 32, 512, 2048)
COLUMNS = ("weight", "group", "rows", "us", "limit us", "% of limit", "bf16 us", "x bf16")
MEMORY = "/dev/shm"
_EMBEDDINGS = ("model.embed_tokens", "lm_head")
COLD_BYTES = 200 << 20  # of weights, several times the L2 cache
LIMIT = 8e-3  # relative error; rounding weights, their scales and the result to bfloat16


class Group(NamedTuple):
    """Columns that share a scale, and whether all zero points are 8."""

    columns: int
    symmetric: bool


class Weight(NamedTuple):
    """A random weight as packages store it: codes uint8 [O, K], scales and zeros [O, groups]."""

    codes: Tensor
    scale: Tensor
    zero: Tensor

    @staticmethod
    def random(outputs: int, columns: int, group: Group, device: torch.device) -> Weight:
        shape = (outputs, columns // group.columns)
        scale = (torch.rand(shape, device=device) + 0.5) / columns**0.5 / 8
        zero = torch.randint(16, shape, dtype=torch.uint8, device=device)
        codes = torch.randint(16, (outputs, columns), dtype=torch.uint8, device=device)
        return Weight(codes, scale.bfloat16(), zero.fill_(8) if group.symmetric else zero)

    def packed(self) -> TiledWna16:
        return pack(pack_bytes(self.codes, 4), self.scale.float(), self.zero, 4)

    def floats(self) -> Tensor:
        columns = self.codes.shape[1]
        group_of = groups_in_order(columns, columns // self.scale.shape[1]).to(self.codes.device)
        return dequantize(self.codes, self.scale, self.zero, group_of)


Product = Callable[[Tensor], Tensor]


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--shape", choices=SHAPES, action="append", help="default: all")
    flags.add_argument("--rows", type=int, action="append", help="default: 1 to 2,048")
    flags.add_argument("--vllm", metavar="PATHS", help="where vLLM's packages are")
    flags.add_argument("--step", action="store_true", help="a step of the whole model instead")
    arguments = flags.parse_args()
    device, rounds = the_gpu(), 3 if arguments.quick else 7
    if arguments.step:
        time_step(device, rounds)
        return
    rate = copy_bandwidth(device, rounds)
    peers = vllm_kernels(arguments.vllm) if arguments.vllm else None
    columns = COLUMNS if peers is None else (*COLUMNS, "Marlin us", "Machete us")
    report = Report(f"INT4 weights on {device.description()}", columns)
    report.notes.append(f"A copy reads and writes {rate / 1e12:.2f} TB/s.")
    for name in arguments.shape or SHAPES:
        for group in (Group(128, True), Group(32, False)):
            weight = Weight.random(*SHAPES[name], group, device.torch_device)
            products = Products(weight.packed(), 4, weight.floats(), device)
            if peers is not None:
                products.peers = peer_products(peers, weight, group, products.count)
            for rows in arguments.rows or ROWS:
                report.add(**products.row((name, group.columns, rows), columns, rate, rounds))
    report.print()
    report.write(arguments.json)


class Products:
    """The ways to multiply by one kind of weight, each with enough weights to keep L2 cold."""

    def __init__(self, first: TiledWna16, bits: int, floats: Tensor, device: Device) -> None:
        """`floats` is what `first` stands for; `peers` are to have `count` weights each."""
        self._device, self._bits = device, bits
        self.nbytes = sum(each.nbytes for each in first if each is not None)
        count = self.count = max(2, -(-COLD_BYTES // self.nbytes))
        others = (
            TiledWna16(*(each if each is None else each.clone() for each in first))
            for _ in range(count - 1)
        )
        self._ours = (first, *others)
        self._floats = floats
        self._bf16 = [self._floats.bfloat16() for _ in range(max(2, count // 4))]
        self.peers: dict[str, list[Product]] = {}

    def row(
        self, what: tuple[str, int | str, int], columns: tuple[str, ...], rate: float, rounds: int
    ) -> dict[str, Any]:
        """A row of the report for the rows in `what`, at a copy's `rate` in bytes a second."""
        times, limit = self.times(what[2], rounds), self.nbytes / rate * 1e6
        ours, theirs = times["ours"], times["bf16"]
        others = [times[each] for each in ("marlin", "machete") if each in times]
        found = (*what, ours, limit, 100 * limit / ours, theirs, theirs / ours, *others)
        return dict(zip(columns, found, strict=False))

    def times(self, rows: int, rounds: int) -> dict[str, float]:
        """Microseconds of each way: medians of rounds in which all take turns.

        Raises ValueError when one is wrong.
        """
        columns = self._floats.shape[1]
        x = torch.randn(rows, columns, device=self._floats.device, dtype=torch.bfloat16)
        expected = x.float() @ self._floats.T
        ways = self._ways(x)
        for name, way in ways.items():
            error = float((way().float() - expected).norm() / expected.norm())
            if not error < LIMIT:
                raise ValueError(f"{name}, {rows} rows: relative error {error}")
        replays = {name: captured(self._device, way) for name, way in ways.items()}
        return {name: each.median for name, each in interleave(replays, rounds).items()}

    def _ways(self, x: Tensor) -> dict[str, Callable[[], Tensor]]:
        ours, floats = itertools.cycle(self._ours), itertools.cycle(self._bf16)
        largest = ops.skinny_linear_rows(self._bf16[0])
        bf16 = ops.skinny_linear if len(x) <= largest else functional.linear
        ways: dict[str, Callable[[], Tensor]] = {
            "ours": lambda: ops.tiled_wna16_linear(x, *next(ours), self._bits),
            "bf16": lambda: bf16(x, next(floats)),
        }
        for name, weights in self.peers.items():
            turns = itertools.cycle(weights)
            ways[name] = lambda turns=turns: next(turns)(x)  # type: ignore[misc]
        return ways


def vllm_kernels(paths: str) -> ModuleType:
    """vLLM's custom operators from its packages at `paths`."""
    sys.path.extend(paths.split(":"))
    import vllm._custom_ops as kernels

    return kernels


def peer_products(
    kernels: ModuleType, weight: Weight, group: Group, count: int
) -> dict[str, list[Product]]:
    """Marlin's and Machete's products by `count` copies of a weight, as vLLM's layers make them."""
    from vllm.scalar_type import scalar_types

    outputs, columns = weight.codes.shape
    kind = scalar_types.uint4b8 if group.symmetric else scalar_types.uint4
    shifts = torch.arange(0, 32, 4, device=weight.codes.device, dtype=torch.int32)
    words = weight.codes.T.int().view(columns // 8, 8, outputs) << shifts[:, None]
    gptq = words.sum(dim=1, dtype=torch.int32)  # [K / 8, O]
    scales = weight.scale.T.contiguous()

    def machete(packed: Tensor, zeros: Tensor | None) -> Product:
        return lambda x: kernels.machete_mm(  # type: ignore[no-any-return]
            x, packed, kind, b_group_scales=scales, b_group_zeros=zeros, b_group_size=group.columns
        )

    first = kernels.machete_prepack_B(gptq.T.contiguous().T, torch.bfloat16, kind, torch.bfloat16)
    zeros = None if group.symmetric else (-scales * weight.zero.T).contiguous()
    found = {"machete": [machete(first.clone(), zeros) for _ in range(count)]}
    if group.symmetric:
        found = {"marlin": marlin_products(kernels, gptq, scales, group, count), **found}
    return found


def marlin_products(
    kernels: ModuleType, gptq: Tensor, scales: Tensor, group: Group, count: int
) -> list[Product]:
    """Marlin by weights without zero points."""
    from vllm.model_executor.layers.quantization.utils import marlin_utils
    from vllm.scalar_type import scalar_types

    columns, outputs = gptq.shape[0] * 8, gptq.shape[1]
    none = torch.empty(0, dtype=torch.int32, device=gptq.device)
    first = kernels.gptq_marlin_repack(gptq, none, columns, outputs, 4)
    permuted = marlin_utils.marlin_permute_scales(scales, columns, outputs, group.columns)
    workspace = marlin_utils.marlin_make_workspace_new(gptq.device)

    def product(packed: Tensor) -> Product:
        return lambda x: marlin_utils.apply_gptq_marlin_linear(  # type: ignore[no-any-return]
            x,
            packed,
            permuted,
            none,
            none,
            none,
            workspace,
            scalar_types.uint4b8,
            outputs,
            columns,
            is_k_full=True,
        )

    return [product(first.clone()) for _ in range(count)]


def time_step(device: Device, rounds: int) -> None:
    """Print the milliseconds of a step of the Qwen3-8B shape with INT4 weights at batch 1 to 64."""
    from benchmark.gpu_engine import GpuEngine

    with tempfile.TemporaryDirectory(dir=MEMORY if Path(MEMORY).is_dir() else None) as folder:
        write_checkpoint(Path(folder), "qwen3-8b", device.torch_device)
        engine = GpuEngine("qwen3-8b", model=folder, load_format="safetensors", max_seq_len=1024)
        print_steps(engine, rounds)


def print_steps(engine: GpuEngine, rounds: int) -> None:
    """Print the milliseconds of its steps at batch 1 to 64."""
    for batch in (1, 16, 64):
        prompts = [list(range(100 + i, 228 + i)) for i in range(batch)]
        times = sorted(engine.mean_step(prompts, 128, 1)[0] for _ in range(rounds))
        print(f"batch {batch}: {1000 * times[rounds // 2]:.3f} ms a step", flush=True)


def write_checkpoint(folder: Path, shape: str, device: torch.device) -> None:
    """Write a model of a shape with random codes in groups of 128, as llm-compressor names them."""
    from safetensors.torch import save_file

    from benchmark.random_model import config_folder

    config = json.loads((config_folder(shape) / "config.json").read_text())
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
    group = {"targets": ["Linear"], "weights": {**weights, "symmetric": True}}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }
    (folder / "config.json").write_text(json.dumps(config))

    def random(*shape: int) -> Tensor:
        return (0.02 * torch.randn(*shape, device=device)).bfloat16().cpu()

    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    tensors = {f"{name}.weight": random(vocabulary, hidden) for name in _EMBEDDINGS}
    tensors["model.norm.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    for layer in range(config["num_hidden_layers"]):
        for name, tensor in layer_tensors(config, device):
            tensors[f"model.layers.{layer}.{name}"] = tensor
    save_file(tensors, folder / "model.safetensors")


def layer_tensors(config: dict[str, Any], device: torch.device) -> Iterator[tuple[str, Tensor]]:
    """Norms of 1 and random codes of a layer."""
    hidden, inner, head = (config[k] for k in ("hidden_size", "intermediate_size", "head_dim"))
    heads, kv_heads = (config[f"num_{k}_heads"] * head for k in ("attention", "key_value"))
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield f"{name}.weight", torch.ones(hidden, dtype=torch.bfloat16)
    for name in ("self_attn.q_norm", "self_attn.k_norm"):
        yield f"{name}.weight", torch.ones(head, dtype=torch.bfloat16)
    linears = {
        "self_attn.q_proj": (heads, hidden),
        "self_attn.k_proj": (kv_heads, hidden),
        "self_attn.v_proj": (kv_heads, hidden),
        "self_attn.o_proj": (hidden, heads),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    for name, (rows, columns) in linears.items():
        shape = rows, columns // 8
        words = torch.randint(-(2**31), 2**31, shape, device=device, dtype=torch.int32)
        scales = 0.006 * torch.rand(rows, columns // 128, device=device)
        yield f"{name}.weight_packed", words.cpu()
        yield f"{name}.weight_scale", scales.bfloat16().cpu()
        yield f"{name}.weight_shape", torch.tensor([rows, columns])


if __name__ == "__main__":
    main()
