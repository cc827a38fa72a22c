# SPDX-License-Identifier: Apache-2.0
"""The engine in this process for the GPU benchmarks: random weights, made where they are used."""

from __future__ import annotations

import argparse
import atexit
import itertools
import math
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmark.random_model import config_folder, state_bytes
from benchmark.uniform_routing import uniform_routing
from rtp_llm.config.settings import Settings
from rtp_llm.engine.messages import AddRequest
from rtp_llm.engine.ranks.tensor_ranks import RanksPlace
from rtp_llm.engine.start.build import build_engine
from rtp_llm.request.sampling_params import SamplingParams
from rtp_llm.worker.speculative.proposer import Proposer

CONTEXT = 32768  # longest sequence of the GPU benchmarks


def add_flags(flags: argparse.ArgumentParser) -> None:
    """Add the flags that all GPU engine benchmarks share."""
    flags.add_argument("--shape", default="qwen3-0.6b", help="a shape of benchmark/random_model.py")
    flags.add_argument("--rounds", type=int)
    flags.add_argument(
        "--setting",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a setting of the engine other than the benchmark's own (docs/settings.md)",
    )


def add_routing(flags: argparse.ArgumentParser) -> None:
    """Add --uniform-routing, for mixtures of experts."""
    flags.add_argument(
        "--uniform-routing",
        action="store_true",
        help="of mixtures: evenly random experts for each token, in each layer others",
    )


def add_mtp(flags: argparse.ArgumentParser) -> None:
    """Add --mtp: the number of drafts by multi-token prediction."""
    flags.add_argument("--mtp", type=int, default=0, metavar="K", help="draft tokens of a sequence")


def mtp_settings(drafts: int) -> dict[str, Any]:
    """Draft this many tokens in every step; 0 disables drafts."""
    if not drafts:
        return {}
    return {
        "speculative": "mtp",
        "num_speculative_tokens": drafts,
        "speculative_adaptive": False,  # no draft is right, so there would soon be none
    }


def given_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings of `--setting`: numbers, true and false, else text."""
    return {name: _value(text) for name, _, text in (w.partition("=") for w in arguments.setting)}


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.lstrip("-").isdigit() else text


def settings_for(shape: str, **changes: Any) -> Settings:
    """Settings for random weights in this shape; the prefix cache is off, as prompts return."""
    own: dict[str, Any] = {
        "model": str(config_folder(shape)),
        "load_format": "dummy",
        "dtype": "bfloat16",
        "reuse_cache": False,
    }
    return Settings(**{**own, **changes})


def states_mib(shape: str, sequences: int) -> int:
    """MiB of a cache that holds the states of so many sequences.

    They take half of it at most. A sequence has two, which hold more than `state_bytes`: the last
    16 tokens too.
    """
    return math.ceil(2 * 2.5 * state_bytes(shape) * (sequences + 1) / 2**20)


class GpuEngine:
    """Runs requests of token ids to completion and times the steps."""

    def __init__(
        self,
        shape: str,
        proposer: Proposer | None = None,
        *,
        routes_evenly: bool = False,
        **changes: Any,
    ) -> None:
        """``routes_evenly``: see uniform_routing; ``changes`` of settings."""
        settings, place = settings_for(shape, **changes), None
        if settings.tensor_parallel_size > 1:
            if routes_evenly:
                raise SystemExit("--uniform-routing is of one process: leave tensor_parallel_size")
            place = RanksPlace(Path(tempfile.mkdtemp()))
            atexit.register(shutil.rmtree, place.folder, ignore_errors=True)
        with uniform_routing(on=routes_evenly):
            self.built = build_engine(settings, proposer=proposer, place=place)
        if place is not None and self.built.step_group is not None:
            atexit.register(self.built.step_group.leave)
        self.engine = self.built.engine
        self._numbers = itertools.count(1)
        while self.engine.has_idle_work:  # graphs, which a server captures while it waits
            self.engine.work_idle()
        while self.engine.has_work:  # ranks that share experts capture them in steps
            self.engine.step()

    def add(self, prompts: Sequence[list[int]], params: SamplingParams) -> None:
        """Queue prompts with the given sampling parameters."""
        for prompt in prompts:
            request = AddRequest(
                request_id=next(self._numbers), prompt_token_ids=prompt, params=params
            )
            self.engine.add(request)

    def step(self) -> tuple[int, float]:
        """(tokens in the batch, seconds) of one step; (0, seconds) when it only read results."""
        began = time.perf_counter()
        outputs = self.engine.step()
        seconds = time.perf_counter() - began
        return (outputs[-1].batch_tokens if outputs else 0), seconds  # type: ignore[union-attr]

    def seconds_to_end(self) -> float:
        """Step until nothing is left; how long that took."""
        began = time.perf_counter()
        while self.engine.has_work:
            self.engine.step()
        return time.perf_counter() - began

    def mean_step(
        self, prompt_ids: list[list[int]], tokens: int, width: int
    ) -> tuple[float, float]:
        """Seconds of a step, and tokens that it gives each sequence, in the mean: from the first
        step on in which all sequences have ``width`` tokens."""
        self.add(prompt_ids, greedy(tokens))
        steps, seconds = 0, 0.0
        while self.engine.has_work:
            computed, taken = self.step()
            if steps or computed == len(prompt_ids) * width:
                steps, seconds = steps + bool(computed), seconds + taken
        return seconds / steps, (tokens - 1) / steps


def greedy(tokens: int) -> SamplingParams:
    """Generate exactly this many tokens, ignoring end tokens."""
    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
