# SPDX-License-Identifier: Apache-2.0
"""What fusing rotary embedding and cache write saves in whole steps of a model on a GPU.

The engine runs three ways: "one pass" (norms, rotation and cache write in one operator), "two"
(norms, then rotation with the write), "apart" (norms, rotation, then two index writes). Decoding
steps of full batches, and prompts of one request; attention that rotates by itself stays out.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from types import MethodType
from unittest.mock import patch

from torch import Tensor

from benchmark.generation import prompts
from benchmark.gpu_engine import GpuEngine, add_flags, given_settings, greedy
from benchmark.random_model import SHAPES
from benchmark.report import Report, parser
from rtp_llm import ops
from rtp_llm.attention import AttentionBackend, AttentionConfig, make_backend
from rtp_llm.attention.cache_scales import CacheScales
from rtp_llm.attention.rotation import Rotate, Rotation, rotate_in_one_pass, rotate_in_two_passes
from rtp_llm.device import resolve_device

DECODE, PREFILL, PROMPT = (1, 64, 256), (2048, 8192), 128
WARM_UPS, STEPS = 8, 60
COLUMNS = ("step", "one pass us", "two us", "apart us", "gain over two", "gain over apart")


def rotate_apart(
    qkv: Tensor,
    positions: Tensor,
    slots: Tensor,
    cache: Tensor,
    rotation: Rotation,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scales: CacheScales | None = None,
) -> None:
    """Run rotary embedding and cache write as separate kernels."""
    assert scales is None, "scales of a cache in 8 bits"
    cos_sin, q_weight, k_weight, eps, is_neox, offset, norm_offset = rotation
    if q_weight is not None and k_weight is not None:
        ops.qk_rms_norm(qkv, q_weight, k_weight, heads, kv_heads, eps, norm_offset)
    sizes = (heads, kv_heads, head_dim, is_neox, offset)
    ops.rope_kv_write(qkv, positions, cos_sin, None, None, *sizes)
    parts = qkv.view(len(qkv), -1, head_dim)
    places = slots.long()
    for plane, new in zip(cache, (parts[:, heads:-kv_heads], parts[:, -kv_heads:]), strict=True):
        plane.view(-1, kv_heads, head_dim)[places] = new


WAYS: dict[str, Rotate] = {
    "one pass": rotate_in_one_pass,
    "two": rotate_in_two_passes,
    "apart": rotate_apart,
}


def made_to_rotate(way: Rotate) -> Callable[[AttentionConfig], AttentionBackend]:
    """make_backend() with all backends rotating that way, whatever they do by themselves."""

    def make(config: AttentionConfig) -> AttentionBackend:
        with patch("rtp_llm.attention.backend.rotation_for", lambda _: way):
            backend = make_backend(config)
        attend = MethodType(AttentionBackend.attend, backend)
        setattr(backend, "attend", attend)  # noqa: B010 - a method, as far as mypy knows
        return backend

    return make


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    add_flags(flags)
    flags.add_argument("--batch", type=int, action="append")
    flags.add_argument("--length", type=int, action="append")
    arguments = flags.parse_args()
    batches, lengths = arguments.batch or DECODE, arguments.length or PREFILL
    device = resolve_device()
    own = {
        "kv_cache_mem_mb": 12 * 1024 if device.name != "cpu" else 256,
        "max_seq_len": 16384,
        "max_running_requests": max(batches),
        "max_batch_tokens_size": max(*lengths, max(batches) * PROMPT // 4),
    }
    times: dict[str, dict[str, float]] = {}
    for name, way in WAYS.items():
        print(f"building the engine, {name} ...", flush=True)
        with patch("rtp_llm.attention.group_backends.make_backend", made_to_rotate(way)):
            engine = GpuEngine(arguments.shape, **{**own, **given_settings(arguments)})
            steps = 6 if arguments.quick else STEPS
            times[name] = measure(engine, arguments.shape, batches, lengths, steps)
        del engine
        gc.collect()
    report = Report(f"Whole steps on {device.description()}, shape {arguments.shape}", COLUMNS)
    for step, fused in times["one pass"].items():
        two, apart = times["two"][step], times["apart"][step]
        figures = (step, fused, two, apart, two / fused, apart / fused)
        report.add(**dict(zip(COLUMNS, figures, strict=True)))
    report.print()
    report.write(arguments.json)


def measure(
    engine: GpuEngine, shape: str, batches: Sequence[int], lengths: Sequence[int], steps: int
) -> dict[str, float]:
    """Microseconds of each kind of step, medians."""
    size, results = SHAPES[shape]["vocab_size"], {}

    def token_ids(count: int, length: int) -> list[list[int]]:
        return [[token % size for token in prompt] for prompt in prompts(count, length)]

    for batch in batches:
        engine.add(token_ids(batch, PROMPT), greedy(WARM_UPS + steps + 4))
        while engine.step()[0] != batch:
            pass  # prompts
        for _ in range(WARM_UPS):
            engine.step()
        taken = [engine.step()[1] for _ in range(steps)]
        results[f"decode {batch}"] = 1e6 * statistics.median(taken)
        engine.seconds_to_end()
    for length in lengths:
        taken = []
        for _ in range(2 + steps // 10):
            engine.add(token_ids(1, length), greedy(1))
            taken.append(engine.seconds_to_end())
        results[f"prefill {length}"] = 1e6 * statistics.median(taken[1:])
    return results


if __name__ == "__main__":
    main()
