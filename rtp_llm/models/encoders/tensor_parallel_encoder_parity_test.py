# SPDX-License-Identifier: Apache-2.0
"""Encoders divided among ranks give the states that they give on one."""

from __future__ import annotations

from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rtp_llm.attention.batch import ForwardBatch
from rtp_llm.distributed.tensor_parallel import SINGLE, TensorParallel, planned_rank
from rtp_llm.distributed.world import World
from rtp_llm.models.causal_lm import CausalLM
from rtp_llm.models.config import UnsupportedModelError
from rtp_llm.testing.models.encoder_models import ENCODERS, save_encoder
from rtp_llm.testing.models.open_model import open_model
from rtp_llm.testing.models.transformers_models import random_prompt
from rtp_llm.testing.ranks import run_ranks
from rtp_llm.worker.inputs.step_inputs import padding

LENGTHS = (37, 1, 64)
# Four heads, so that two ranks have two each; of GTE and ModernBERT all projections are one tensor.
DIVIDED: dict[str, dict[str, Any]] = {kind: {"num_attention_heads": 4} for kind in ENCODERS}
DIVIDED["distilbert"] = {"n_heads": 4, "dim": 64}
for _kind in sorted({*ENCODERS} - {"distilbert"}):
    DIVIDED[_kind]["hidden_size"] = 64
WIDE = {"num_attention_heads": 4, "hidden_size": 256, "intermediate_size": 512}
CASES = [
    *((kind, kind, settings, "none") for kind, settings in DIVIDED.items()),
    ("bert int8", "bert", WIDE, "int8"),
]


@torch.inference_mode()
def states_of(model: CausalLM) -> NDArray[np.float32]:
    """The states of three prompts, each of a single text."""
    prompts = [random_prompt(length, seed=length) for length in LENGTHS]
    ends = [0, *accumulate(LENGTHS)]
    batch = ForwardBatch(
        token_ids=torch.tensor([*chain(*prompts)], dtype=torch.int32),
        positions=torch.cat([torch.arange(n, dtype=torch.int32) for n in LENGTHS]),
        slot_mapping=(),
        block_table=(),
        cu_seqlens_q=torch.tensor(ends, dtype=torch.int32),
        seq_lens=torch.tensor(LENGTHS, dtype=torch.int32),
        max_seqlen_q=max(LENGTHS),
        max_seqlen_k=max(LENGTHS),
        kv_cache=(),
        layer_group=(),
        **padding(model.inputs.needs, sum(LENGTHS), len(LENGTHS), torch.device("cpu")),
    )
    return model(batch).numpy()  # type: ignore[no-any-return]


def _open(folder: Path, number: int, ranks: TensorParallel) -> CausalLM:
    return open_model(folder / str(number), tensor_parallel=ranks, quantization=CASES[number][3])


def _on_rank(world: World, folder: Path) -> list[NDArray[np.float32]]:
    ranks = TensorParallel(world.rank, world.size, world.tensors)
    return [states_of(_open(folder, number, ranks)) for number in range(len(CASES))]


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    folder = tmp_path_factory.mktemp("two")
    for number, (_, kind, settings, _) in enumerate(CASES):
        save_encoder(folder / str(number), kind, **settings)
    return folder, run_ranks(folder, 2, _on_rank, folder)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case[0] for case in CASES])
def test_two_ranks_give_what_one_gives(on_two: tuple[Path, list[Any]], number: int) -> None:
    folder, found = on_two
    assert all(isinstance(each, list) for each in found), found
    alone = states_of(_open(folder, number, SINGLE))
    first, second = (each[number] for each in found)
    np.testing.assert_allclose(first, alone, rtol=0, atol=2e-5 * np.abs(alone).max())
    assert np.array_equal(first, second), "ranks must have the same bits"


def test_heads_that_cannot_be_divided_are_named(tmp_path: Path) -> None:
    save_encoder(tmp_path, "bert")  # three heads
    with pytest.raises(UnsupportedModelError, match=r"num_attention_heads 3 = 2 x 1 [+] 1"):
        open_model(tmp_path, tensor_parallel=planned_rank(2))
