# SPDX-License-Identifier: Apache-2.0
"""FlashInfer (the package flashinfer-python, 0.6 and newer) over the paged cache."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import shutil
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from rtp_llm.attention.backend import AttentionBackend, AttentionConfig, PartialBackend
from rtp_llm.attention.batch import ForwardBatch
from rtp_llm.attention.flashinfer_measured import find_measured
from rtp_llm.attention.pages import Pages, list_pages, pinned
from rtp_llm.attention.rotation import Rotation
from rtp_llm.device import Support

_logger = logging.getLogger("rtp_llm.engine")
_PACKAGE = "flashinfer-python"
_OLDEST = (0, 6)
_HEAD_DIMS = (64, 128, 256)
_MAX_GROUP = 16
# Partial results of sequences whose keys are split: at most 264 tiles of 128 rows for each of the
# heads that share keys, 277 MB for 16 of 128.
_WORKSPACE_BYTES = 384 * 2**20
_TENSOR_CORES_FROM = 4  # heads that share keys, in decoding
_BEFORE_ALL = 100  # higher than any backend's priority
_LEAST_QUERIES = 512  # per sequence, for a batch to count as prompts only


class FlashInferBackend(PartialBackend):
    """Steps with lengths that are known to the host; captured steps go to another backend.

    FlashInfer plans a step's work on the host, from its lengths, before the first layer, whereas a
    graph is replayed with lengths other than those it was captured with.

    If selected explicitly, it takes all uncaptured steps. Otherwise it takes only those in which it
    was measured to be faster, and only if its kernels are precompiled.
    """

    name: ClassVar[str] = "flashinfer"
    priority: ClassVar[int] = 5
    # Of prompts: its "fa3" on Hopper, else "fa2". With a window "fa3" was not tried.
    kernels: ClassVar[str] = "auto"

    @classmethod
    def supports(cls, config: AttentionConfig) -> Support:
        group = config.num_heads // config.num_kv_heads
        if not config.capabilities.architecture.startswith("sm_"):
            return Support.no("it is for NVIDIA GPUs")
        if config.dtype not in (torch.bfloat16, torch.float16):
            return Support.no(f"{config.dtype} products do not run on tensor cores")
        if config.kv_dtype != config.dtype:
            return Support.no("with a KV cache of another type than the queries it was not tried")
        if config.head_dim not in _HEAD_DIMS:
            return Support.no(f"heads of {config.head_dim}; it takes 64, 128 and 256")
        if group > _MAX_GROUP:
            return Support.no(f"{group} heads share keys; its workspace here is for {_MAX_GROUP}")
        if config.sinks or config.soft_cap or not config.causal:
            return Support.no("only causal attention without sinks and soft cap was tried with it")
        return _installed(os.environ)

    @classmethod
    def priority_for(cls, config: AttentionConfig) -> int:
        return _BEFORE_ALL if _faster(config) and _comes_compiled() else cls.priority

    @classmethod
    def note(cls, config: AttentionConfig) -> str:
        measured = find_measured(config)
        if measured is None:
            return "not measured for these heads on this GPU"
        if (
            config.settings.attention_backend == cls.name
            or not measured.long_is_faster
            or _comes_compiled()
        ):
            return str(measured)
        return f"{measured}; to be chosen for the first it needs the package flashinfer-jit-cache"

    def __init__(self, config: AttentionConfig, others: AttentionBackend) -> None:
        super().__init__(config, others)
        self._library: Any = importlib.import_module("flashinfer")
        self._workspace: Tensor | None = None
        self._planners: dict[tuple[int, bool], _Planner] = {}
        measured = None if config.settings.attention_backend == self.name else find_measured(config)
        self._least_keys = 0 if measured is None else measured.long_from
        self._checked_batch: ForwardBatch | None = None
        self._answer = False

    def attend(
        self,
        qkv: Tensor,
        layer: int,
        window: int,
        batch: ForwardBatch,
        rotation: Rotation,
        sinks: Tensor | None = None,
    ) -> Tensor:
        if not self._takes(batch):
            return self.others.attend(qkv, layer, window, batch, rotation, sinks)
        return super().attend(qkv, layer, window, batch, rotation, sinks)

    def forward(
        self,
        q: Tensor,
        layer: int,
        window: int,
        batch: ForwardBatch,
        sinks: Tensor | None = None,
    ) -> Tensor:
        if not self._takes(batch):
            return self.others.forward(q, layer, window, batch, sinks)
        assert batch.host is not None
        group = batch.layer_group[layer]
        decodes = batch.max_seqlen_q == 1 and len(q) == len(batch.host.seq_lens)
        planner = self._planners.get((group, decodes))
        if planner is None:
            planner = self._planners[group, decodes] = self._planner(q.device, window, decodes)
        if planner.step is not batch:
            pages = list_pages(batch.host, group, self.config.block_size, window)
            planner.plan(batch, pages)
        keys, values = batch.kv_cache[layer]
        return planner.run(q, keys, values)

    def _takes(self, batch: ForwardBatch) -> bool:
        if batch.host is None or not batch.host.exact:
            return False
        if self._checked_batch is not batch:
            fewest = int(np.diff(batch.host.cu_seqlens_q).min())
            is_long = batch.max_seqlen_k >= self._least_keys and fewest >= _LEAST_QUERIES
            self._checked_batch, self._answer = batch, is_long or not self._least_keys
        return self._answer

    def _planner(self, device: torch.device, window: int, decodes: bool) -> _Planner:
        """Create a planner for one cache group and kind of step.

        All planners share one workspace: its contents are only needed within a layer.
        """
        if self._workspace is None:
            _logger.info(
                "attention by FlashInfer %s; what of it is not in its cache on disk (%s) is "
                "compiled now, for minutes where nothing is",
                metadata.version(_PACKAGE),
                os.environ.get("FLASHINFER_WORKSPACE_BASE", "~") + "/.cache/flashinfer",
            )
            # Zeroed, as its decode wrapper asks.
            self._workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        config, library = self.config, self._library
        if not decodes:
            wrapper = library.BatchPrefillWithPagedKVCacheWrapper(
                self._workspace, "NHD", backend=self.kernels if not window else "fa2"
            )
            return _Planner(wrapper, config, window, device)
        wrapper = library.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace,
            "NHD",
            use_tensor_cores=config.num_heads // config.num_kv_heads >= _TENSOR_CORES_FROM,
            backend="fa2",
        )
        return _Planner(wrapper, config, window, device, decodes=True)


class _Planner:
    """One of FlashInfer's wrappers together with its plan of a step."""

    def __init__(
        self,
        wrapper: Any,
        config: AttentionConfig,
        window: int,
        device: torch.device,
        *,
        decodes: bool = False,
    ) -> None:
        self.step: ForwardBatch | None = None
        self._wrapper = wrapper
        self._decodes = decodes
        self._sizes = config.num_heads, config.num_kv_heads, config.head_dim, config.block_size
        self._options: dict[str, Any] = {
            # The keys before a query's own that it sees; -1: all.
            "window_left": window - 1,
            "sm_scale": config.score_scale,
            "q_data_type": config.dtype,
            "kv_data_type": config.kv_dtype,
        }
        if not decodes:
            self._options["causal"] = True
        self._copied = torch.Event(device)

    def plan(self, step: ForwardBatch, pages: Pages) -> None:
        """Divide the work of `step`; waits for the copies of the plan before it, nothing else."""
        # The wrapper has one pinned buffer for its plans, and the step before may still be queued.
        self._copied.synchronize()
        arrays = [pages.ends, pages.blocks, pages.last]
        if not self._decodes:
            arrays.insert(0, pages.queries)
        self._wrapper.plan(*pinned(arrays), *self._sizes, **self._options)
        self._copied.record()
        self.step = step

    def run(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """`q` [T, H, D], rows may be strided; `keys`, `values` [N, S, Hk, D] -> [T, H, D]."""
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        self._wrapper.run(q, (keys, values), out=out)
        return out


def _installed(environ: Mapping[str, str]) -> Support:
    try:
        version = metadata.version(_PACKAGE)
    except metadata.PackageNotFoundError:
        return Support.no(f"the package {_PACKAGE} is not installed")
    if tuple(map(int, version.split(".")[:2])) < _OLDEST:
        return Support.no(f"{_PACKAGE} {version} is too old; it takes 0.6 and newer")
    if not _has_compiler(environ) and not _comes_compiled():
        return Support.no(
            "it compiles its kernels when they are first used, and there is neither nvcc "
            "(CUDA_HOME) nor the package flashinfer-jit-cache"
        )
    return Support.yes()


def _faster(config: AttentionConfig) -> bool:
    measured = find_measured(config)
    return measured is not None and measured.long_is_faster


def _comes_compiled() -> bool:
    """Whether FlashInfer's kernels are precompiled; compiling them at start-up takes minutes."""
    return importlib.util.find_spec("flashinfer_jit_cache") is not None


def _has_compiler(environ: Mapping[str, str]) -> bool:
    home = environ.get("CUDA_HOME") or environ.get("CUDA_PATH") or "/usr/local/cuda"
    return shutil.which("nvcc") is not None or (Path(home) / "bin" / "nvcc").exists()
