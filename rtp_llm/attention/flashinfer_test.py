# SPDX-License-Identifier: Apache-2.0
"""Tests of the FlashInfer backend without a GPU: what it says yes to, and what it asks the package.

In the package's place stands one that does in plain PyTorch what FlashInfer's documentation says of
a plan's arrays; gpu_flashinfer_test.py has the package itself.
"""

from __future__ import annotations

import dataclasses
import sys
from importlib import metadata
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from rtp_llm.attention import AttentionConfig, Rotation, explain, make_backend
from rtp_llm.attention import flashinfer as module
from rtp_llm.attention import flashinfer_measured as measured
from rtp_llm.attention.flashinfer import FlashInferBackend
from rtp_llm.attention.paged import PagedAttentionBackend
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.device.capabilities import HOST
from rtp_llm.device.choice import NoChoiceError
from rtp_llm.testing.attention.steps import (
    KINDS,
    forget_old_blocks,
    shape_of,
    step_of,
)
from rtp_llm.testing.capabilities import AMPERE, HOPPER, ROCM
from rtp_llm.testing.operator_checks import assert_near
from rtp_llm.testing.paged_batches import PagedBatch

HALF = torch.bfloat16
CUDA = AttentionConfig(HOPPER, HALF, HALF, 16, 8, 128, 16)
CONFIG = AttentionConfig(HOST, torch.float32, torch.float32, 4, 2, 64, 16)


class _Wrapper:
    """`decodes` says which of the two wrappers; all that was asked of it is in `log`."""

    def __init__(self, log, decodes, workspace, layout, **options):
        assert (layout, workspace.dtype) == ("NHD", torch.uint8)
        self.log, self.decodes, self.workspace = log, decodes, workspace
        log.append(("made", decodes, options))

    def plan(self, *arguments, **options):
        arrays, self.sizes = arguments[:-4], arguments[-4:]
        if self.decodes:
            arrays = (torch.arange(len(arrays[-1]) + 1, dtype=torch.int32), *arrays)
        assert all(array.dtype == torch.int32 for array in arrays)
        self.arrays, self.options = arrays, options
        self.log.append(("planned", self.decodes, options))

    def run(self, q, planes, out):
        queries, ends, blocks, last = self.arrays
        heads, kv_heads, head_dim, block_size = self.sizes
        assert q.shape[1:] == (heads, head_dim)
        for row in range(len(last)):
            mine = slice(int(queries[row]), int(queries[row + 1]))
            pages = blocks[ends[row] : ends[row + 1]].long()
            count = (len(pages) - 1) * block_size + int(last[row])
            keys, values = (
                plane[pages].flatten(0, 1)[:count].repeat_interleave(heads // kv_heads, 1)
                for plane in planes
            )
            scores = torch.einsum("qhd,khd->hqk", q[mine], keys) * self.options["sm_scale"]
            own = torch.arange(count - (mine.stop - mine.start), count)[:, None]
            distance = own - torch.arange(count)
            seen = distance >= 0
            if self.options["window_left"] >= 0:
                seen &= distance <= self.options["window_left"]
            weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
            out[mine] = torch.einsum("hqk,khd->qhd", weights, values)


class _Event:
    """Says in `log` when the host waits and when it marks the stream."""

    def __init__(self, log):
        self._log = log

    def synchronize(self):
        self._log.append(("waited",))

    def record(self):
        self._log.append(("marked",))


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def log(monkeypatch):
    """The package is there, and what it is asked is in this list."""
    calls = []
    package = SimpleNamespace(
        BatchPrefillWithPagedKVCacheWrapper=lambda *a, **k: _Wrapper(calls, False, *a, **k),
        BatchDecodeWithPagedKVCacheWrapper=lambda *a, **k: _Wrapper(calls, True, *a, **k),
    )
    monkeypatch.setitem(sys.modules, "flashinfer", package)
    monkeypatch.setattr(metadata, "version", lambda name: "0.7.2.post1")
    monkeypatch.setattr(module, "_has_compiler", lambda environ: True)
    monkeypatch.setattr(torch, "Event", lambda device: _Event(calls))
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self)  # there is no GPU to copy to
    return calls


def backend_of(config, window=0):
    config = dataclasses.replace(config, windows=(window,))
    return FlashInferBackend(config, PagedAttentionBackend(config))


def batch_of(kind):
    """Of no more keys than a quick test needs."""
    lengths = [(min(queries, 60), min(keys, 400)) for queries, keys in KINDS[kind]]
    return PagedBatch.random(lengths, shape_of(CONFIG), torch.float32)


def kinds(log, word):
    return [entry[1] for entry in log if entry[0] == word]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [0, 300])
def test_its_arrays_mean_the_step(log, kind, window):
    batch = batch_of(kind)
    expected = batch.expected(window=window)
    if window:
        forget_old_blocks(batch, window)
    actual = backend_of(CONFIG, window).forward(batch.q, 0, window, step_of(batch))
    assert_near(actual, expected.float())
    assert kinds(log, "made") == [kind == "decode"]


def test_a_step_is_planned_once_for_each_cache_group(log):
    backend = backend_of(CONFIG)
    for number, kind in enumerate([*KINDS, *KINDS]):
        batch = batch_of(kind)
        step = step_of(batch, groups=2)
        step = dataclasses.replace(step, kv_cache=step.kv_cache * 2, layer_group=(0, 1, 0, 1))
        del log[:]
        for layer in range(4):
            backend.forward(batch.q, layer, 0, step)
        assert len(kinds(log, "planned")) == 2
        # Before the one pinned buffer of a plan is written again, its copy is waited for.
        words = [entry[0] for entry in log if entry[0] != "made"]
        assert words == ["waited", "planned", "marked"] * 2
        assert len(kinds(log, "made")) == (2 if number < 2 else 0)


def test_what_a_plan_is_asked_for(log):
    batch = batch_of("mixed")
    backend_of(CONFIG, 300).forward(batch.q, 0, 300, step_of(batch))
    assert log[0] == ("made", False, {"backend": "fa2"})
    wanted = {
        "window_left": 299,
        "sm_scale": 0.125,
        "q_data_type": torch.float32,
        "kv_data_type": torch.float32,
    }
    assert log[2] == ("planned", False, {**wanted, "causal": True})
    del log[:]
    batch = batch_of("decode")
    backend_of(CONFIG).forward(batch.q, 0, 0, step_of(batch))
    assert log[0] == ("made", True, {"backend": "fa2", "use_tensor_cores": False})
    assert log[2] == ("planned", True, {**wanted, "window_left": -1})


def test_captured_steps_go_to_the_others(log):
    backend = backend_of(CONFIG)
    batch = batch_of("mixed")
    batch.kv_cache.nan_to_num_()
    step = dataclasses.replace(step_of(batch), host=None)
    assert_near(backend.forward(batch.q, 0, 0, step), batch.expected().float())
    qkv = torch.randn(len(batch.q), 8 * 64)
    assert backend.attend(qkv, 0, 0, step, Rotation()).shape == (len(qkv), 4 * 64)
    assert not log


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"windows": (0, 4096), "head_dim": 64}, ""),
        ({"capabilities": AMPERE, "dtype": torch.float16, "kv_dtype": torch.float16}, ""),
        ({"capabilities": ROCM}, "for NVIDIA GPUs"),
        ({"dtype": torch.float32, "kv_dtype": torch.float32}, "tensor cores"),
        ({"kv_dtype": torch.float8_e4m3fn}, "KV cache of another type"),
        ({"head_dim": 80}, "heads of 80"),
        ({"num_heads": 256}, "32 heads share keys"),
        ({"soft_cap": 30.0}, "soft cap"),
        ({"sinks": True}, "without sinks"),
        ({"causal": False}, "only causal"),
    ],
)
def test_what_it_supports(log, change, reason):
    answer = FlashInferBackend.supports(dataclasses.replace(CUDA, **change))
    assert bool(answer) == (not reason)
    assert reason in answer.reason


def test_it_has_to_be_installed_with_a_compiler(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert "flashinfer-python is not installed" in FlashInferBackend.supports(CUDA).reason
    monkeypatch.setattr(metadata, "version", lambda name: "0.5.3")
    assert "0.5.3 is too old" in FlashInferBackend.supports(CUDA).reason
    monkeypatch.setattr(metadata, "version", lambda name: "0.6.0")
    monkeypatch.setattr(module, "_has_compiler", lambda environ: False)
    assert "neither nvcc" in FlashInferBackend.supports(CUDA).reason


def test_nvcc_is_looked_for_in_cuda_home(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not module._has_compiler({"CUDA_HOME": str(tmp_path)})
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").touch()
    assert module._has_compiler({"CUDA_HOME": str(tmp_path)})


def row(long):
    ratios = ((0.8, 1.2), (1.0, 1.5), (1.5, 2.0))
    return measured.Measured("a GPU", "0.7.2", "sm_90", 128, 2, 320, long, *ratios)


@pytest.mark.parametrize(
    ("rows", "compiled", "outcome"),
    [
        ((), True, "supported, lower priority; not measured for these heads on this GPU"),
        ((row((0.7, 0.9)),), True, "chosen; 0.7.2 took on a GPU, of the time without it: 0.70"),
        ((row((0.7, 0.9)),), False, "it needs the package flashinfer-jit-cache"),
        ((row((0.7, 1.1)),), True, "supported, lower priority; 0.7.2 took"),
    ],
)
def test_it_is_chosen_where_it_was_measured_to_be_faster(log, monkeypatch, rows, compiled, outcome):
    monkeypatch.setattr(measured, "MEASURED", rows)
    monkeypatch.setattr(module, "_comes_compiled", lambda: compiled)
    line = next(line for line in explain(CUDA).splitlines() if line.startswith("  flashinfer"))
    assert outcome in line
    # Heads in other groups were not measured, nor windows.
    for change in ({"num_heads": 32}, {"windows": (0, 4096)}):
        other = explain(dataclasses.replace(CUDA, **change)).splitlines()
        assert "not measured" in next(x for x in other if x.startswith("  flashinfer"))


@pytest.mark.parametrize(
    ("lengths", "taken"),
    [
        ([(600, 600)], True),
        ([(512, 1000), (900, 900)], True),
        ([(600, 600), (511, 511)], False),  # too few queries in one of them
        ([(1, 2000), (900, 900)], False),
        ([(1, 2000)], False),
        ([(300, 300)], False),  # too few keys
    ],
)
def test_chosen_by_itself_it_takes_what_it_is_faster_in(log, monkeypatch, lengths, taken):
    monkeypatch.setattr(measured, "MEASURED", (row((0.7, 0.9)),))
    config = dataclasses.replace(CUDA, head_dim=128)
    step = step_of(PagedBatch.random(lengths, shape_of(CONFIG), torch.float32))
    backend = FlashInferBackend(config, PagedAttentionBackend(CONFIG))
    assert backend._takes(step) == taken
    forced = dataclasses.replace(config, settings=ModelSettings(attention_backend="flashinfer"))
    assert FlashInferBackend(forced, PagedAttentionBackend(CONFIG))._takes(step)
    assert not backend._takes(dataclasses.replace(step, host=None))


def test_what_is_in_the_table_is_explained():
    for entry in measured.MEASURED:
        assert entry.long_is_faster
        assert f"prompts from {entry.long_from} keys on" in str(entry)


def test_it_can_be_forced(log):
    forced = dataclasses.replace(CUDA, settings=ModelSettings(attention_backend="flashinfer"))
    backend = make_backend(forced)
    assert backend.name == "flashinfer"
    assert "(priority 5): chosen by --attention-backend" in explain(forced)
    with pytest.raises(NoChoiceError, match="--attention-backend flashinfer: heads of 80"):
        make_backend(dataclasses.replace(forced, head_dim=80))
