# SPDX-License-Identifier: Apache-2.0
"""Weights of GGUF files in tiles on a GPU: products against the copy rate and bfloat16.

As ./dev bench gpu_int4, for random integers with scales and zero points as the types have them. The
limit is the time to read what a type takes on the GPU, not in the file. `--step RECIPE` times a
step of the Qwen3-8B shape in a file of such a recipe instead, which the package gguf writes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor

from benchmark.gguf_shapes import RECIPES, gguf_file
from benchmark.gpu_int4 import COLUMNS, MEMORY, ROWS, SHAPES, Products, print_steps
from benchmark.gpu_time import copy_bandwidth, the_gpu
from benchmark.report import Report, parser
from rtp_llm.ops.gemm.tiled_wna16_layout import (
    TiledWna16,
    empty_codes,
    put_codes,
    unpack,
    with_numbers,
)
from rtp_llm.ops.gguf.integers import INTEGERS

KINDS = ("Q4_0", "Q4_K", "Q5_0", "Q5_K", "Q6_K", "Q8_0")


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--shape", choices=SHAPES, action="append", help="default: all")
    flags.add_argument("--type", choices=INTEGERS, action="append", help="default: six of them")
    flags.add_argument("--rows", type=int, action="append", help="default: 1 to 2,048")
    flags.add_argument("--step", choices=RECIPES, help="a step of the whole model instead")
    arguments = flags.parse_args()
    device, rounds = the_gpu(), 3 if arguments.quick else 7
    if arguments.step:
        time_step(arguments.step, rounds)
        return
    rate = copy_bandwidth(device, rounds)
    columns = ("weight", "type", *COLUMNS[2:])
    report = Report(f"GGUF weights on {device.description()}", columns)
    report.notes.append(f"A copy reads and writes {rate / 1e12:.2f} TB/s.")
    for name in arguments.shape or SHAPES:
        for kind in arguments.type or KINDS:
            packed, floats = random_weight(kind, *SHAPES[name], device.torch_device)
            products = Products(packed, INTEGERS[kind].bits, floats, device)
            for rows in arguments.rows or ROWS:
                report.add(**products.row((name, kind, rows), columns, rate, rounds))
    report.print()
    report.write(arguments.json)


def random_weight(
    kind: str, outputs: int, columns: int, device: torch.device
) -> tuple[TiledWna16, Tensor]:
    """A random weight of a type, and the float32 [outputs, columns] that it stands for."""
    bits, group, _, zeros = INTEGERS[kind]
    codes = torch.randint(1 << bits, (outputs, columns), dtype=torch.uint8, device=device)
    packed = empty_codes(outputs, columns, bits, device)
    put_codes(packed, 0, codes, bits)
    shape = (outputs, columns // group)
    scale = (torch.rand(shape, device=device) + 0.5) / columns**0.5 / (1 << bits)
    zero = scale * (torch.rand(shape, device=device) - 0.5) * (1 << bits - 2) if zeros else None
    found = with_numbers(packed, columns, scale, zero)
    return found, unpack(found, bits)


def time_step(recipe: str, rounds: int) -> None:
    """Print the milliseconds of a step of the Qwen3-8B shape; the embedding is the head, too."""
    from benchmark.gpu_engine import GpuEngine

    with tempfile.TemporaryDirectory(dir=MEMORY if Path(MEMORY).is_dir() else None) as folder:
        file = gguf_file("qwen3-8b", recipe, Path(folder))
        engine = GpuEngine("qwen3-8b", model=str(file), load_format="safetensors", max_seq_len=1024)
        weights = engine.built.ready.weight_bytes / 2**30
        print(f"{recipe}: {file.stat().st_size / 2**30:.2f} GiB, on the GPU {weights:.2f}")
        print_steps(engine, rounds)


if __name__ == "__main__":
    main()
