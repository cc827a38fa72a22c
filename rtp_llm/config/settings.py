# SPDX-License-Identifier: Apache-2.0
"""The typed table of settings: everything that a user can configure in the engine.

Flags, environment names, the TOML file and `docs/settings.md` are all derived from this table.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtp_llm.config.disagg_settings import DisaggSettings
from rtp_llm.config.listener_settings import ListenerSettings
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.config.options import Option, SettingsError, flag_name, option
from rtp_llm.config.other_engines import known_elsewhere
from rtp_llm.config.rank_settings import RankSettings
from rtp_llm.config.server_settings import ServerSettings
from rtp_llm.config.speculative_settings import SpeculativeSettings
from rtp_llm.config.suggestions import meant

_logger = logging.getLogger("rtp_llm.config")

# What a GGUF file's name ends in, after the model's.
_OF_GGUF = re.compile(r"(-\d{5}-of-\d{5})?\.gguf$", re.IGNORECASE)
# In the order of the documentation.
_GROUPS = (
    "model",
    "device",
    "cache",
    "scheduling",
    "speculation",
    "disaggregation",
    "server",
    "ranks",
)


@dataclass(frozen=True, kw_only=True)
class Settings(
    ModelSettings,
    SpeculativeSettings,
    DisaggSettings,
    RankSettings,
    ServerSettings,
    ListenerSettings,
):
    """All settings, checked; created by `Settings(model=..., dtype=...)` or load_settings().

    Raises SettingsError naming the field if a value is invalid. None means "auto" where that is
    allowed.
    """

    # model
    model: str = option(
        "",
        "text",
        "model",
        "Folder of the model: config.json, safetensors, tokenizer.json (Hugging Face layout); or a "
        "GGUF file.",
        positional=True,
    )
    served_model_name: tuple[str, ...] | None = option(
        None,
        "names",
        "model",
        "Names that clients may put into `model`: several words, or separated by commas. Answers "
        "and metrics have the first.",
        automatic="the name of the model's folder",
    )
    chat_template: str | None = option(
        None,
        "text",
        "model",
        "File with a Jinja chat template, used instead of the model's own.",
        automatic="the template of the model folder",
    )
    use_generation_config: bool = option(
        True,
        "switch",
        "model",
        "Take defaults of sampling from generation_config.json; a request's own values win.",
    )
    seed: int = option(
        0,
        "integer",
        "model",
        "Seed of the engine; a request without `seed` draws its own from it.",
        minimum=0,
        maximum=2**63 - 1,
    )

    # device
    device_type: str = option(
        "auto",
        "text",
        "device",
        "Device to run on; auto takes the one this wheel was built for, or else the CPU.",
        choices=("auto", "cpu", "cuda", "rocm", "xpu"),
    )
    num_threads: int | None = option(
        None,
        "integer",
        "device",
        "Threads for CPU kernels.",
        minimum=1,
        maximum=4096,
        automatic="the cores that this process may use",
    )
    profiler_dir: str | None = option(
        None,
        "text",
        "device",
        "Folder for traces of the engine by torch.profiler; with it POST /start_profile and "
        "/stop_profile are there.",
        automatic="no profiler",
        advanced=True,
    )
    allow_reference_ops: bool = option(
        False,
        "switch",
        "device",
        "On an accelerator, allow the slow PyTorch reference of an operator without a kernel.",
        advanced=True,
    )
    allow_untested_device: bool = option(
        False,
        "switch",
        "device",
        "Allow what was written for a device and never run there: one model over several AMD GPUs "
        "(--tensor-parallel-size, --pipeline-parallel-size).",
        advanced=True,
    )
    enable_graphs: bool | None = option(
        None,
        "switch",
        "device",
        "Capture decode steps, verification of drafts and short prompts as CUDA or HIP graphs "
        "where the device can; off: every step runs eagerly.",
        automatic="on where graphs were tried (cuda); off on rocm",
        former="enable_cuda_graph",
    )
    enable_overlap: bool | None = option(
        None,
        "switch",
        "device",
        "Asynchronous scheduling: schedule and launch a step while the previous one runs on the "
        "device.",
        automatic="on where the device runs asynchronously (cuda, rocm)",
    )
    deep_gemm_use_swap_ab: bool | None = option(
        None,
        "switch",
        "device",
        "Use swap-AB for FP8 products of few rows: the weight takes the tensor cores' 64-row side.",
        automatic="on where the device has FP8 products (NVIDIA Hopper GPUs)",
        advanced=True,
    )
    deep_gemm_swap_ab_rows: int | None = option(
        None,
        "integer",
        "device",
        "Most rows (per group in grouped products) for which FP8 products use swap-AB.",
        unit="rows",
        minimum=0,
        maximum=1024,
        automatic="as measured, for each kind of product (docs/fp8.md)",
        advanced=True,
    )
    deep_gemm_num_sm: int | None = option(
        None,
        "integer",
        "device",
        "Multiprocessors that FP8 products may use.",
        minimum=1,
        maximum=65536,
        automatic="all of them",
        advanced=True,
    )

    # cache
    kv_cache_mem_mb: int | None = option(
        None,
        "integer",
        "cache",
        "Memory for the KV cache.",
        unit="MiB",
        minimum=1,
        maximum=2**30,
        automatic="what steps leave of a GPU; on the CPU up to four times the weights",
    )
    reserve_runtime_mem_mb: int = option(
        0,
        "integer",
        "cache",
        "On a GPU, memory that the KV cache leaves free; at least 2048 MiB, a twentieth of the "
        "device and what steps took in a trial are left in any case. The cache takes the rest, "
        "unless kv_cache_mem_mb says its size.",
        unit="MiB",
        minimum=0,
        maximum=2**30,
        advanced=True,
    )
    gpu_memory_utilization: float | None = option(
        None,
        "number",
        "cache",
        "Share of the device's memory that may be in use with weights, steps and KV cache, other "
        "programs included; on the CPU of the machine's. kv_cache_mem_mb beats it.",
        minimum=0.01,
        maximum=1,
        automatic="what reserve_runtime_mem_mb leaves; on the CPU 70% of what is free at most",
    )
    reuse_cache: bool = option(
        True, "switch", "cache", "Prefix cache: reuse the KV cache of prompts with a common prefix."
    )

    # scheduling
    max_running_requests: int = option(
        256,
        "integer",
        "scheduling",
        "Sequences that may run at once.",
        minimum=1,
        maximum=65536,
    )
    max_queued_requests: int = option(
        1024,
        "integer",
        "scheduling",
        "Sequences that may wait; more are refused with 429.",
        minimum=1,
        maximum=1048576,
    )
    max_batch_tokens_size: int | None = option(
        None,
        "integer",
        "scheduling",
        "Token budget of one step; longer prompts are prefilled in chunks.",
        unit="tokens",
        minimum=1,
        maximum=2**24,
        automatic="8192 on a GPU, 256 on the CPU, at least max_running_requests",
    )
    aging_steps: int = option(
        256,
        "integer",
        "scheduling",
        "Steps of waiting that are worth one level of a request's priority: fewer, and requests "
        "that came earlier are overtaken less.",
        unit="steps",
        minimum=1,
        maximum=1048576,
        advanced=True,
    )

    @functools.cached_property
    def model_name(self) -> str:
        """The model name that responses report."""
        return self.model_names[0]

    @functools.cached_property
    def model_names(self) -> tuple[str, ...]:
        """The names under which the model is served."""
        return self.served_model_name or (_OF_GGUF.sub("", Path(self.model).resolve().name),)


def options() -> dict[str, Option]:
    """The table: field name -> Option, in the order of the documentation."""
    return _OPTIONS


def former_names() -> Mapping[str, str]:
    """Names of the previous version, each with the field that it sets now."""
    return _FORMER


def current_names(given: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Return `given` with names of the previous version replaced, each with a warning.

    Raises SettingsError for the first unknown name, suggesting the intended one, and for a setting
    that is given by both of its names.
    """
    named: dict[str, Any] = {}
    for name, value in given.items():
        current = current_name(name)
        if current not in _OPTIONS:
            near = meant(name, _OPTIONS)
            listed = f"did you mean {near}?" if near else f"there are {', '.join(_OPTIONS)}"
            hint = as_names(known_elsewhere(name) or listed)
            raise SettingsError(f"{name}: no such setting{where}; {hint}")
        if current != name and current in given:
            raise SettingsError(f"{name}: the former name of {current}, which is given, too{where}")
        named[current] = value
    return named


def current_name(name: str, label: Callable[[str], str] = str) -> str:
    """Return the current name; log a warning, in the words of `label`, if it has changed."""
    current = _FORMER.get(name, name)
    if current != name:
        text = "%s is called %s now; the next version drops the old name"
        _logger.warning(text, label(name), label(current))
    return current


def as_names(text: str) -> str:
    """Replace flags in a text by the names that Python and TOML use: max_seq_len."""
    return _FLAG.sub(_as_name, text)


def _as_name(match: re.Match[str]) -> str:
    flag, value = match.groups()
    name = _NAMES.get(flag)
    if name is None:
        return match[0]
    return f'{name}="{value}"' if value in _OPTIONS[name].choices else name + match[0][len(flag) :]


def _table() -> dict[str, Option]:
    rows = {field.name: field.metadata["option"] for field in dataclasses.fields(Settings)}
    order = sorted(rows, key=lambda name: _GROUPS.index(rows[name].group))
    for name, info in rows.items():
        if info.after:
            order.remove(name)
            order.insert(order.index(info.after) + 1, name)
    return {name: rows[name] for name in order}


_OPTIONS: dict[str, Option] = _table()
_FORMER = {info.former: name for name, info in _OPTIONS.items() if info.former}
_FLAG = re.compile(r"(--[a-z][a-z0-9-]*[a-z0-9])(?: (\w+))?")
_NAMES = {flag_name(name): name for name in _OPTIONS}

__all__ = ["Settings", "SettingsError", "as_names", "current_names", "options"]
