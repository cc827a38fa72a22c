# SPDX-License-Identifier: Apache-2.0
"""Models divided among ranks give what they give on one: logits, tokens, drafts."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rtp_llm import ops
from rtp_llm.distributed.tensor_parallel import SINGLE, TensorParallel
from rtp_llm.distributed.world import World
from rtp_llm.layers.weights.int_formats import Awq, Gptq, IntGroups
from rtp_llm.models.causal_lm import CausalLM
from rtp_llm.testing.fp8_products import multiply_fp8_on_cpu
from rtp_llm.testing.gguf.models import save_gguf
from rtp_llm.testing.models.contiguous_runner import ContiguousRunner
from rtp_llm.testing.models.eagle3_models import save_eagle3_head
from rtp_llm.testing.models.fp8_checkpoints import (
    BLOCKS,
    CHANNELS,
    HF_TENSORS,
    TENSORS,
    Style,
    store_as_fp8,
)
from rtp_llm.testing.models.int_checkpoints import store_as_integers
from rtp_llm.testing.models.mtp_models import save_mtp_model
from rtp_llm.testing.models.mxfp4_checkpoints import store_as_mxfp4
from rtp_llm.testing.models.open_model import open_model
from rtp_llm.testing.models.stored_checkpoints import PACKINGS, store_packed
from rtp_llm.testing.models.transformers_models import CLEAR_GAP, random_prompt, save_model
from rtp_llm.testing.ranks import run_ranks

torch.set_num_threads(2)

LENGTH, NEW_TOKENS, CHUNK = 53, 12, 7
_GGUF = "tiny.gguf"
# Ranks that divide columns would quantise other activations together.
_EXACT = {"gguf_activations": "float"}
_ARCHITECTURES = {"deepseek_v3": "deepseek2", "llama": "llama", "qwen3_5": "qwen35"}
_ARCHITECTURES |= {"qwen3_moe": "qwen3moe"}
# Of the largest logit, in float32; and where activations are rounded.
TOLERANCE, ROUNDED = 1e-5, 5e-2


@dataclass(frozen=True)
class Case:
    """A model of this `kind` with `settings` of its config, opened with `opened`.

    `fp8`: how it is stored in FP8; `mxfp4`: that it is in MXFP4; `gguf`: the type of its GGUF file;
    `packing`: a name in PACKINGS; `integers`: its quantization_config and format.
    `draft`: "mtp", "eagle3" or "model", what is opened with it. `rounds`: activations are rounded,
    where the order of a sum may decide between two numbers.
    """

    kind: str
    settings: dict[str, Any] = field(default_factory=dict)
    opened: dict[str, Any] = field(default_factory=dict)
    fp8: Style | None = None
    mxfp4: bool = False
    gguf: str = ""
    packing: str = ""
    integers: tuple[dict[str, Any], IntGroups] | None = None
    draft: str = ""
    rounds: bool = False

    def save(self, folder: Path) -> None:
        folder.mkdir()
        if self.draft == "mtp":
            save_mtp_model(folder, self.kind, **self.settings)
            return
        model = save_model(folder, self.kind, **self.settings)
        if self.draft == "eagle3":
            save_eagle3_head(folder / "head", model, draft_vocab_size=50)
        if self.draft == "model":
            save_model(folder / "other", "qwen2", seed=1)
        if self.fp8 is not None:
            store_as_fp8(folder, style=self.fp8)
        if self.mxfp4:
            store_as_mxfp4(folder)
        if self.gguf:
            save_gguf(folder / _GGUF, model, _ARCHITECTURES[self.kind], self.gguf)
        if self.packing:
            store_packed(folder, PACKINGS[self.packing])
        if self.integers is not None:
            config, stored = self.integers
            store_as_integers(folder, config, stored, torch.float32)

    def open(self, folder: Path, ranks: TensorParallel = SINGLE) -> CausalLM:
        drafts: dict[str, dict[str, Any]] = {
            "": {},
            "mtp": {"mtp": True},
            "eagle3": {"eagle3": str(folder / "head")},
            "model": {"draft_model": str(folder / "other")},
        }
        place = folder / _GGUF if self.gguf else folder
        return open_model(place, tensor_parallel=ranks, **self.opened, **drafts[self.draft])

    def __str__(self) -> str:
        texts = [f"{key}={value}" for key, value in {**self.settings, **self.opened}.items()]
        return " ".join(
            filter(
                None,
                [
                    self.kind,
                    self.draft,
                    self.fp8 and f"fp8 {self.fp8.kind}",
                    "mxfp4" * self.mxfp4,
                    self.gguf and f"gguf {self.gguf}",
                    self.packing,
                    self.integers and self.integers[1].name,
                    *texts,
                ],
            )
        )


def heads(query: int, key_value: int, head_dim: int) -> dict[str, Any]:
    return {
        "num_attention_heads": query,
        "num_key_value_heads": key_value,
        "head_dim": head_dim,
    }


BIASES = {"attention_bias": True, "mlp_bias": True}
TIED = {"tie_word_embeddings": True}
# Borders between ranks are borders of FP8 blocks, and of groups of int8 weights.
WIDE = {"hidden_size": 256, "intermediate_size": 512, **heads(4, 2, 128)}
WIDE_MLA = {
    "hidden_size": 256,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "head_dim": 64,
    "v_head_dim": 64,
    "intermediate_size": 512,
    "moe_intermediate_size": 256,
    "q_lora_rank": 128,
}
WIDE_NET = {
    **WIDE,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "shared_expert_intermediate_size": 256,
    "moe_intermediate_size": 128,
}
CASES = [
    Case("llama"),
    Case("llama", {**heads(4, 1, 80), **BIASES}),
    Case("llama", {**TIED, "vocab_size": 201}),
    Case("mistral", {**heads(8, 2, 64), "sliding_window": 24}),
    Case("qwen2", TIED),
    Case("qwen3", {"attention_bias": True, "vocab_size": 333}),
    Case("qwen3_moe"),
    Case("qwen3_moe", {"norm_topk_prob": False, "decoder_sparse_step": 2}),
    Case("mixtral"),
    Case("qwen2_moe", {"mlp_only_layers": [1]}),
    Case("gemma2", {"attention_bias": True}),
    Case("gemma3"),
    Case("gemma4", {"attention_bias": True}),
    Case("gemma4_experts"),
    Case("gpt_oss"),
    Case("exaone4"),
    Case("glm4"),
    Case("granite_moe", heads(4, 2, 16)),
    Case("olmo2", heads(4, 2, 16)),
    Case("phi3", heads(4, 2, 16)),
    Case("ernie4_5_moe", heads(4, 2, 16)),
    Case("glm4_moe"),
    Case("minimax_m2", heads(8, 2, 64)),
    Case("ministral3"),
    Case(
        "llama",
        {"hidden_size": 128, "intermediate_size": 192},
        integers=(
            {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True},
            Gptq(group=32, ordered=True),
        ),
        rounds=True,
    ),
    Case(
        "qwen3",
        {"hidden_size": 128, "intermediate_size": 192},
        integers=({"quant_method": "awq", "bits": 4, "group_size": 32}, Awq(group=32)),
        rounds=True,
    ),
    Case("gpt_oss", {"intermediate_size": 96}, mxfp4=True),
    Case("llama", {**heads(4, 2, 64), **BIASES, "intermediate_size": 128}, _EXACT, gguf="Q4_0"),
    Case("qwen3_moe", {"intermediate_size": 128, "moe_intermediate_size": 64}, _EXACT, gguf="Q8_0"),
    Case("qwen3_5", {"intermediate_size": 128, "linear_value_head_dim": 32}, _EXACT, gguf="Q8_0"),
    Case("deepseek_v3", {"moe_intermediate_size": 64}, gguf="F16"),
    Case("deepseek_v2"),
    Case("deepseek_v3", {"attention_bias": True}),
    Case("deepseek_v3", {"q_lora_rank": None}),
    Case("glm_moe_dsa"),
    Case("qwen3_next"),
    Case("granite4", {"mamba_n_groups": 1, "num_local_experts": 4, "num_experts_per_tok": 2}),
    Case("granite4", {"attention_bias": True, "mamba_proj_bias": True}),
    Case("nemotron_h", {"mlp_bias": True}),
    Case("qwen3_5", {"attention_bias": True}),
    Case("qwen3_5_moe", TIED),
    Case("llama", WIDE, {"quantization": "int8"}),
    Case("qwen3", {**WIDE, **TIED}, {"quantization": "w8a8_int8"}, rounds=True),
    Case("qwen3_5", WIDE_NET, {"quantization": "int8"}),
    Case("qwen3", WIDE, fp8=BLOCKS),
    Case("deepseek_v3", WIDE_MLA, fp8=BLOCKS),
    Case("qwen3_next", WIDE_NET, fp8=BLOCKS),
    Case("qwen3_5_moe", WIDE_NET, fp8=BLOCKS),
    Case("llama", BIASES, fp8=HF_TENSORS),
    Case("qwen3_moe", fp8=CHANNELS),
    Case("qwen3_next", fp8=TENSORS),
    Case("qwen3", {**WIDE, **BIASES}, packing="w8a8", rounds=True),
    Case("qwen3_moe", {"moe_intermediate_size": 64, "hidden_size": 128}, packing="modelopt nvfp4"),
    Case("qwen3_next", WIDE_NET, packing="nested nf4"),
    Case("qwen3", {**WIDE, **BIASES}, packing="mxfp4"),
    Case("llama", WIDE, packing="mlx", rounds=True),
    Case("deepseek_v3", draft="mtp"),
    Case("qwen3_next", TIED, draft="mtp"),
    Case("llama", draft="eagle3"),
    Case("qwen3_moe", draft="eagle3"),
    Case("qwen3", draft="model"),
]
# Four ranks: those with the same KV head, and experts of which a token may choose none here.
FOUR = [
    Case("llama"),
    Case("qwen3", heads(8, 1, 64)),
    Case("qwen3_moe"),
    Case("deepseek_v3"),
    Case("olmo3", heads(4, 2, 16)),
    Case("qwen3_5", {"linear_num_key_heads": 4, "linear_num_value_heads": 8}),
]

Numbers = NDArray[np.float32]


@dataclass(frozen=True)
class Answers:
    """Logits of a prompt, whole and in chunks, the tokens after it, and a draft head's logits."""

    whole: Numbers
    chunked: Numbers
    tokens: list[int]
    drafts: Numbers | None


@torch.inference_mode()
def answers(model: CausalLM, prompt: list[int]) -> Answers:
    def runner() -> ContiguousRunner:
        return ContiguousRunner(model, 1, LENGTH + NEW_TOKENS)

    drafts = None
    if model.drafts is not None:
        runner().prefill(prompt[:-1])  # which leaves what an EAGLE-3 head reads
        generator = torch.Generator().manual_seed(1)
        shape = LENGTH - 1, model.config.hidden_size
        states = model.draft_states(torch.randn(shape, generator=generator))
        drafts = runner().draft(prompt[1:], states).float().numpy()
    return Answers(
        runner().prefill(prompt).numpy(),
        runner().prefill(prompt, CHUNK).numpy(),
        runner().greedy(prompt, NEW_TOKENS, 16),
        drafts,
    )


def clear_prompt(model: CausalLM) -> list[int]:
    """A prompt whose greedy tokens are no close calls."""
    for seed in itertools.count():
        prompt = random_prompt(LENGTH, seed)
        tokens = ContiguousRunner(model, 1, 128).greedy(prompt, NEW_TOKENS, 16)
        logits = ContiguousRunner(model, 1, 128).prefill(prompt + tokens)[LENGTH - 1 :]
        best = logits.topk(2).values
        if float((best[:, 0] - best[:, 1]).min()) > CLEAR_GAP:
            return prompt
    raise AssertionError("unreachable")


def _on_rank(
    world: World, folder: Path, cases: list[Case], prompts: list[list[int]]
) -> list[Answers]:
    ranks = TensorParallel(world.rank, world.size, world.tensors)
    return [
        answers(case.open(folder / str(number), ranks), prompt)
        for number, (case, prompt) in enumerate(zip(cases, prompts, strict=True))
    ]


def compared(folder: Path, cases: list[Case], size: int) -> list[tuple[Answers, list[Answers]]]:
    """For each case the answers of one rank, and of each of `size`."""
    alone: list[Answers] = []
    prompts: list[list[int]] = []
    for number, case in enumerate(cases):
        case.save(folder / str(number))
        model = case.open(folder / str(number))
        prompts.append(clear_prompt(model))
        alone.append(answers(model, prompts[-1]))
    results = run_ranks(folder, size, _on_rank, folder, cases, prompts)
    for result in results:
        assert isinstance(result, list), result
    return list(zip(alone, map(list, zip(*results, strict=True)), strict=True))


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Answers, list[Answers]]]:
    return compared(tmp_path_factory.mktemp("two"), CASES, 2)


@pytest.fixture(scope="module")
def on_four(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Answers, list[Answers]]]:
    return compared(tmp_path_factory.mktemp("four"), FOUR, 4)


def check(case: Case, alone: Answers, ranks: list[Answers]) -> None:
    first = ranks[0]
    most = np.abs(alone.whole).max() * (ROUNDED if case.rounds else TOLERANCE)
    for logits in (first.whole, first.chunked):
        assert np.abs(logits - alone.whole).max() <= most
    assert case.rounds or first.tokens == alone.tokens
    if alone.drafts is not None:
        assert first.drafts is not None
        error = np.abs(first.drafts - alone.drafts).max()
        assert error <= TOLERANCE * np.abs(alone.drafts).max()
    for other in ranks[1:]:
        assert np.array_equal(other.whole, first.whole), "ranks must have the same bits"
        assert np.array_equal(other.chunked, first.chunked)
        assert other.tokens == first.tokens


@pytest.mark.parametrize("number", range(len(CASES)), ids=[str(case) for case in CASES])
def test_two_ranks_give_what_one_gives(
    on_two: list[tuple[Answers, list[Answers]]], number: int
) -> None:
    check(CASES[number], *on_two[number])


FP8_PRODUCTS = [
    Case("qwen3", WIDE, fp8=BLOCKS),
    Case("qwen3_moe", WIDE, fp8=BLOCKS),
    Case("qwen3_moe", WIDE, fp8=CHANNELS),
]


def _fp8_logits(world: World | None, folder: Path, cases: list[Case]) -> list[Numbers]:
    """Of weights that stay in FP8, for which a process of its own has the products."""
    multiply_fp8_on_cpu()
    ops.allow_reference_ops(True)
    ranks = SINGLE if world is None else TensorParallel(world.rank, world.size, world.tensors)
    prompt, found = random_prompt(LENGTH), []
    for number in range(len(cases)):
        model = open_model(folder / str(number), torch.bfloat16, tensor_parallel=ranks)
        assert any(parameter.dtype is torch.float8_e4m3fn for parameter in model.parameters())
        found.append(ContiguousRunner(model, 1, LENGTH).prefill(prompt).float().numpy())
    return found


def test_products_of_fp8_weights_are_as_close_as_their_rounding(tmp_path: Path) -> None:
    """Activations and sums are rounded to bfloat16 and to FP8, on one rank as on two: logits are
    off from those of the same weights in float32 alike."""
    exact: list[Numbers] = []
    for number, case in enumerate(FP8_PRODUCTS):
        case.save(tmp_path / str(number))
        runner = ContiguousRunner(case.open(tmp_path / str(number)), 1, LENGTH)
        exact.append(runner.prefill(random_prompt(LENGTH)).numpy())
    (alone,) = run_ranks(tmp_path / "0", 1, _fp8_logits, tmp_path, FP8_PRODUCTS, connect=False)
    first, second = run_ranks(tmp_path / "1", 2, _fp8_logits, tmp_path, FP8_PRODUCTS)
    for right, one, ours, same in zip(exact, alone, first, second, strict=True):
        error, allowed = (np.square(logits - right).mean() for logits in (ours, one))
        print(f"squared errors: {error:.3g} on two ranks, {allowed:.3g} on one")
        assert 0 < error < 1.5 * allowed < 0.1 * np.square(right).mean()
        assert np.array_equal(ours, same)


@pytest.mark.parametrize("number", range(len(FOUR)), ids=[str(case) for case in FOUR])
def test_four_ranks_give_what_one_gives(
    on_four: list[tuple[Answers, list[Answers]]], number: int
) -> None:
    check(FOUR[number], *on_four[number])
