"""Decoding on a GPU: milliseconds a step beside transformers, with recorded steps and without.

Random weights in the shape of Qwen3-0.6B, bfloat16, prompts of 128 tokens, 128 new ones. Contenders
take turns; the limit is what a step must read over the rate at which the device copies.
"""

from __future__ import annotations

import itertools
import pathlib
import statistics
import time
from collections.abc import Callable

import torch
import transformers

from benchmark.generation import prompts
from benchmark.gpu_time import copy_bandwidth, the_gpu
from benchmark.random_model import model_folder, step_bytes
from benchmark.report import Report, parser
from benchmark.rounds import interleave
from rtp_llm.config.settings import Settings
from rtp_llm.device import Device
from rtp_llm.engine.build import build_engine
from rtp_llm.engine.messages import AddRequest
from rtp_llm.sampling_params import SamplingParams

SHAPE, PROMPT, STEPS = "qwen3-0.6b", 128, 128
BATCHES = (1, 16, 64, 256)
COLUMNS = (
    "batch",
    "ours ms",
    "spread ms",
    "tokens/s",
    "eager ms",
    "transformers ms",
    "x transformers",
    "limit ms",
    "% of limit",
)


class OurEngine:
    """The engine in this process."""

    def __init__(self, folder: pathlib.Path, *, graphs: bool) -> None:
        settings = Settings(
            model=str(folder),
            dtype="bfloat16",
            kv_cache_mem_mb=12 * 1024,
            max_seq_len=1024,
            max_running_requests=max(BATCHES),
            max_batch_tokens_size=8192,
            reuse_cache=False,
            enable_cuda_graph=graphs,
        )
        self._engine = build_engine(settings).engine
        self._numbers = itertools.count(1)

    def step_seconds(self, batch: int) -> float:
        """Median time of a step that decodes one token for each of ``batch`` sequences."""
        params = SamplingParams(temperature=0.0, max_tokens=STEPS, ignore_eos=True)
        for prompt in prompts(batch, PROMPT):
            number = next(self._numbers)
            request = AddRequest(request_id=number, prompt_token_ids=prompt, params=params)
            self._engine.add(request)
        times = []
        while self._engine.has_work:
            began = time.perf_counter()
            output = self._engine.step()[-1]
            if output.batch_tokens == batch:
                times.append(time.perf_counter() - began)
        return statistics.median(times)


class Transformers:
    """``transformers.generate`` with the weights of the same folder, eager, with its own cache."""

    def __init__(self, folder: pathlib.Path, device: Device) -> None:
        transformers.logging.set_verbosity_error()
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        self._model = model.to(device.torch_device).eval()
        self._device = device

    def step_seconds(self, batch: int) -> float:
        """Mean time of a step, the prompt's own taken away."""
        ids = torch.tensor(prompts(batch, PROMPT), device=self._device.torch_device)
        few, many = (self._seconds(ids, tokens) for tokens in (2, 34))
        return (many - few) / 32

    def _seconds(self, ids: torch.Tensor, tokens: int) -> float:
        began = time.perf_counter()
        with torch.inference_mode():
            self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=tokens,
                max_new_tokens=tokens,
                pad_token_id=0,
            )
        self._device.synchronize()
        return time.perf_counter() - began


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--rounds", type=int)
    arguments = flags.parse_args()
    rounds = arguments.rounds or (2 if arguments.quick else 5)
    device = the_gpu()
    folder = model_folder(SHAPE)
    report = Report(f"Decoding on {device.description()}, shape {SHAPE}", COLUMNS)
    report.notes.append("eager: ours without recorded steps. limit: bytes read over the copy rate.")
    contenders = {
        "ours": OurEngine(folder, graphs=True),
        "eager": OurEngine(folder, graphs=False),
        "transformers": Transformers(folder, device),
    }
    for batch in BATCHES:
        measure(report, contenders, batch, rounds, device)
    report.print()
    report.write(arguments.json)


def measure(
    report: Report,
    contenders: dict[str, OurEngine | Transformers],
    batch: int,
    rounds: int,
    device: Device,
) -> None:
    """One row."""
    runs: dict[str, Callable[[], float]] = {
        name: lambda engine=engine: engine.step_seconds(batch)  # type: ignore[misc]
        for name, engine in contenders.items()
    }
    figures = interleave({**runs, "copy": lambda: copy_bandwidth(device, 3)}, rounds)
    ours, peer = figures["ours"], figures["transformers"].median
    limit = step_bytes(SHAPE, "bfloat16", batch, PROMPT + STEPS // 2) / figures["copy"].median
    report.add(
        **{
            "batch": batch,
            "ours ms": 1e3 * ours.median,
            "spread ms": tuple(1e3 * value for value in ours.spread),
            "tokens/s": batch / ours.median,
            "eager ms": 1e3 * figures["eager"].median,
            "transformers ms": 1e3 * peer,
            "x transformers": peer / ours.median,
            "limit ms": 1e3 * limit,
            "% of limit": 100 * limit / ours.median,
        }
    )


if __name__ == "__main__":
    main()
