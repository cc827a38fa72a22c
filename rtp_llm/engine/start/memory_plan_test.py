# SPDX-License-Identifier: Apache-2.0
"""Tests of how memory is divided, over devices that are made up."""

from __future__ import annotations

import pytest
import torch

from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.config.settings import Settings
from rtp_llm.device import MemoryInfo, Support
from rtp_llm.device.cpu import CpuDevice
from rtp_llm.engine.start import memory_plan
from rtp_llm.engine.start.memory_plan import plan_memory, weight_bytes, weights_that_fit
from rtp_llm.loader import load_model
from rtp_llm.testing.models.transformers_models import save_model
from rtp_llm.worker.cache.budget import CacheSizeError
from rtp_llm.worker.warm_up import StepLimits, measure_steps

MIB, GIB = 2**20, 2**30
LIMITS = StepLimits(max_batch_tokens=100, max_running=6, max_model_len=40, block_size=16)


class OwnMemory(CpuDevice):
    """A device of ``total`` bytes of its own on which steps take ``peaks`` in turn."""

    shares_memory = False

    def __init__(self, total=24 * GIB, free=20 * GIB, peaks=(0, 0)):
        super().__init__()
        self._info = MemoryInfo(free=free, total=total)
        self._peaks = list(peaks)
        self.emptied = 0

    def supports(self, feature):
        return Support.yes()

    def memory_info(self):
        return self._info

    def memory_used(self):
        return 3 * GIB

    def reset_peak_memory(self):
        self._peak = 3 * GIB + self._peaks.pop(0)

    def peak_memory(self):
        return self._peak

    def empty_cache(self):
        self.emptied += 1


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_model(folder, "qwen3", seed=3)
    return load_model(folder, device=CpuDevice(), settings=ModelSettings(dtype="float32"))


def plan(model, device, graphs=40, **settings):
    asked = Settings(model="m", max_running_requests=6, **settings)
    return plan_memory(asked, model, device, LIMITS, graphs)


def test_the_measured_steps_are_the_largest(model):
    batches, rows = [], []

    class Watched:
        cache_groups, context_bytes = model.cache_groups, model.context_bytes
        gather_logits = model.gather_logits
        config, drafts, inputs = model.config, None, model.inputs
        has_logits, stage_input = True, model.stage_input

        def __call__(self, batch):
            batches.append(batch)
            return model(batch)

        def compute_logits(self, hidden):
            rows.append(len(hidden))
            return model.compute_logits(hidden)

    device = OwnMemory(peaks=(5 * MIB, 2 * MIB))
    peaks = measure_steps(Watched(), device, LIMITS)
    assert (peaks.prompt, peaks.decode) == (5 * MIB, 2 * MIB)
    prompts, decode = batches
    assert prompts.cu_seqlens_q.tolist() == [0, 40, 80, 100]
    assert (prompts.max_seqlen_q, prompts.max_seqlen_k) == (40, 40)
    assert prompts.positions.tolist() == [*range(40), *range(40), *range(20)]
    assert len(decode.token_ids) == len(decode.seq_lens) == 6
    assert rows == [6, 6]
    # Everything goes to the one block of the temporary cache.
    assert prompts.kv_cache[0].shape[1] == 1
    assert int(prompts.slot_mapping[0].max()) < 16


def test_the_longest_contexts_are_counted_where_steps_expand_latents(tmp_path):
    """Prompts after long prefixes gather more latents than a trial with fresh prompts does."""
    save_model(tmp_path, "deepseek_v3", seed=3)
    model = load_model(tmp_path, device=CpuDevice(), settings=ModelSettings(dtype="float32"))
    peaks = measure_steps(model, OwnMemory(peaks=(5 * MIB, 2 * MIB)), LIMITS)
    mla, heads = model.config.mla, model.config.num_heads
    # Six sequences of forty tokens may be there, a hundred tokens were tried.
    expanded = heads * (mla.nope_size + mla.value_size)
    assert peaks.prompt == 5 * MIB + (6 * 40 - 100) * (mla.cache_size + expanded) * 4
    assert peaks.decode == 2 * MIB


def test_a_device_of_its_own_memory_gives_what_steps_leave(model):
    result = plan(model, OwnMemory(peaks=(5 * GIB, GIB)), graphs=0)
    block = result.bytes // result.full_blocks
    assert result.full_blocks == 15 * GIB // block
    assert result.max_model_len == model.config.max_position_embeddings


def test_graphs_take_their_share(model):
    with_graphs, without = (
        plan(model, OwnMemory(peaks=(5 * GIB, GIB)), graphs=count) for count in (40, 0)
    )
    assert without.bytes - with_graphs.bytes > GIB


def test_graphs_of_prompts_take_theirs(model):
    small, large = (
        plan_memory(
            Settings(model="m", max_running_requests=6),
            model,
            OwnMemory(peaks=(8 * GIB, GIB)),
            LIMITS,
            graphs=40,
            graph_tokens=tokens,
        )
        for tokens in (10, 50)
    )
    block = small.bytes // small.full_blocks
    # Half of the largest step's tokens, against the decode step.
    assert small.bytes - large.bytes == pytest.approx(3 * GIB, abs=block)


def test_shared_memory_is_used_modestly_and_nothing_is_tried(model, monkeypatch):
    monkeypatch.setattr(memory_plan, "measure_steps", None)
    assert plan(model, CpuDevice(), kv_cache_mem_mb=8).bytes <= 8 * MIB


def test_the_warm_up_gives_its_memory_back(model):
    device = OwnMemory(peaks=(0, 0))
    plan(model, device)
    assert device.emptied == 3, "before each measurement and after the last"


def test_steps_that_do_not_fit_are_refused_with_the_numbers(model):
    class Small(OwnMemory):
        def peak_memory(self):
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(CacheSizeError) as error:
        plan(model, Small(total=8 * GIB, free=GIB))
    weights = weight_bytes(model) // MIB
    expected = f"1024 of 8192 MiB are free after loading {weights} MiB of weights"
    assert expected in str(error.value)
    assert "max_batch_tokens_size=100" in str(error.value)
    assert "max_running_requests=6" in str(error.value)


def test_too_little_beside_steps_is_refused_with_the_settings(model):
    with pytest.raises(CacheSizeError) as error:
        plan(model, OwnMemory(total=8 * GIB, free=3 * GIB, peaks=(4 * GIB, GIB)))
    for word in ("holds 0 tokens", "3072 of 8192 MiB", "max_batch_tokens_size", "max_seq_len"):
        assert word in str(error.value)


def test_weights_that_do_not_fit_are_refused_with_the_numbers():
    device = OwnMemory(total=8 * GIB, free=6 * GIB)
    with pytest.raises(CacheSizeError) as error, weights_that_fit(device, "/models/large"):
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert "weights of /models/large do not fit: 6144 of 8192 MiB" in str(error.value)
    with weights_that_fit(device, "small"):
        pass
