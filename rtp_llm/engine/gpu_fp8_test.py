# SPDX-License-Identifier: Apache-2.0
"""FP8 weights on a GPU that multiplies them, through the whole engine; skipped without one."""

from __future__ import annotations

import pytest
import torch

from rtp_llm import ops
from rtp_llm.layers.linear.fp8_channel import Fp8ChannelLinear
from rtp_llm.quantization.fp8 import dequantize_blocks, quantize_blocks
from rtp_llm.testing.models.fp8_checkpoints import BLOCKS, CHANNELS, HF_TENSORS, store_as_fp8
from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.testing.usable_gpu import usable_gpu

# The packages of the engine's link are not part of every image that has a GPU.
pytest.importorskip("msgspec")


def multiplies_fp8():
    device = usable_gpu("cuda")
    return device and device.supports("fp8_products") and ops.has_kernel("fp8_linear", "cuda")


pytestmark = pytest.mark.skipif(not multiplies_fp8(), reason="no GPU that multiplies 8-bit floats")
SETTINGS = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
# Rounded activations choose other experts here and there.
KINDS = {"qwen3": (SETTINGS, 0.2), "qwen3_moe": (SETTINGS | {"moe_intermediate_size": 144}, 0.5)}
LENGTHS = (3, 40, 150)


def tiny_engine(folder, **settings):
    from rtp_llm.testing.engine.tiny_engine import TinyEngine

    given = {"device_type": "cuda", "dtype": "bfloat16", "reuse_cache": False}
    return TinyEngine(folder, **{**given, **settings})


def scores(engine):
    """Log-probabilities of the prompts' tokens, and the tokens that follow."""
    ids = [
        engine.add(random_prompt(length, seed=length), prompt_logprobs=1, max_tokens=12)
        for length in LENGTHS
    ]
    engine.run()
    engine.assert_all_free()
    outcomes = [engine.outcomes[request_id, 0] for request_id in ids]
    prompts = [outcome.prompt_logprobs for outcome in outcomes]
    logprobs = [scored[place].logprob for scored in prompts for place in sorted(scored)]
    return torch.tensor(logprobs), [outcome.tokens for outcome in outcomes]


def store(folder, kind, style=BLOCKS):
    """A model in FP8, and with the weights that its numbers stand for in bfloat16."""
    (folder / "fp8").mkdir()
    save_model(folder / "fp8", kind, seed=7, **KINDS[kind][0])
    return folder / "fp8", store_as_fp8(folder / "fp8", dtype=torch.bfloat16, style=style)


@pytest.fixture
def folders(tmp_path):
    return store(tmp_path, "qwen3")


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_score_as_without_fp8(tmp_path, kind):
    stored, wide = store(tmp_path, kind)
    allowed = KINDS[kind][1]
    before = ops.kernel_calls("fp8_linear")
    engine = tiny_engine(stored)
    assert engine.ready.quantization == "fp8"
    found, _ = scores(engine)
    assert ops.kernel_calls("fp8_linear") > before
    exact, _ = scores(tiny_engine(wide))
    on_cpu, _ = scores(tiny_engine(stored, device_type="cpu"))
    assert len(found) == sum(LENGTHS) - len(LENGTHS)
    # Rounded activations move them; on the CPU blocks are floats, as in the other folder.
    assert not torch.equal(found, exact)
    for other in (exact, on_cpu):
        assert (found - other).abs().mean() < allowed * exact.std()
    assert (exact - on_cpu).abs().mean() < allowed / 4 * exact.std()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("style", [CHANNELS, HF_TENSORS], ids=["channels", "tensors"])
def test_scales_of_channels_and_tensors(tmp_path, kind, style):
    stored, wide = store(tmp_path, kind, style)
    engine = tiny_engine(stored)
    model = engine.built.worker.runner.model
    assert Fp8ChannelLinear in {type(module) for module in model.modules()}
    if kind == "qwen3_moe":
        assert model.model.layers[-1].mlp.executor.name == "fp8_channel"
    found, _ = scores(engine)
    exact, _ = scores(tiny_engine(wide))
    assert not torch.equal(found, exact)
    assert (found - exact).abs().mean() < KINDS[kind][1] * exact.std()
    (tmp_path / "captured").mkdir()
    check_captured(store(tmp_path / "captured", kind, style)[0], KINDS[kind][1])


def test_quantising_while_loading_makes_the_stored_blocks(folders):
    stored, wide = folders
    # What the blocks stand for, rounded to bfloat16, has the same numbers and nearly the scales.
    kept, made = tiny_engine(stored), tiny_engine(wide, quantization="fp8")
    assert made.ready.weight_bytes == kept.ready.weight_bytes
    assert made.ready.weight_bytes < 0.75 * tiny_engine(wide).ready.weight_bytes
    parameters = (engine.built.worker.runner.model.parameters() for engine in (kept, made))
    for one, two in zip(*parameters, strict=True):
        if one.dtype is torch.float8_e4m3fn:
            assert (one.float() != two.float()).float().mean() < 1e-3
        else:
            torch.testing.assert_close(one, two, rtol=2**-8, atol=0)


def test_blocks_are_those_of_the_cpu():
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        weight = (torch.randn(700, 900) * torch.logspace(-6, 3, 700)[:, None]).to(dtype)
        numbers, scales = quantize_blocks(weight)
        theirs, their_scales = quantize_blocks(weight.cuda())
        assert torch.equal(scales, their_scales.cpu())
        assert torch.equal(numbers.view(torch.uint8), theirs.cpu().view(torch.uint8))
        wide = dequantize_blocks(theirs, their_scales).cpu()
        assert torch.equal(dequantize_blocks(numbers, scales), wide)


def test_captured_steps_score_as_eager_ones(folders):
    check_captured(folders[0])


def test_captured_steps_of_mixtures_score_as_eager_ones(tmp_path):
    check_captured(store(tmp_path, "qwen3_moe")[0], 0.2)


def check_captured(folder, allowed=0.05):
    eager = tiny_engine(folder, enable_graphs=False)
    captured = tiny_engine(folder)
    while captured.engine.has_idle_work:
        captured.engine.work_idle()
    (first, _), (second, _) = scores(eager), scores(captured)
    # A padded product may round otherwise; a token of another sequence would change everything.
    assert (first - second).abs().mean() < allowed * first.std()


def test_another_dtype_makes_floats_of_the_blocks(folders):
    engine = tiny_engine(folders[0], dtype="float16")
    assert engine.ready.quantization == "none"
    exact, _ = scores(tiny_engine(folders[1], dtype="float16"))
    assert (scores(engine)[0] - exact).abs().mean() < 0.05 * exact.std()
