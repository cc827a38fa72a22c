# SPDX-License-Identifier: Apache-2.0
"""Offline generation where the model gives no distribution to sample from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rtp_llm import LLM, SamplingParams
from rtp_llm.testing.model_folders import byte_level
from rtp_llm.testing.models.transformers_models import save_model


def test_a_sequence_that_breaks_keeps_what_it_had(tmp_path: Path) -> None:
    def break_second(logits: torch.Tensor, rows: Any) -> None:
        broken = torch.from_numpy((rows.steps >= 3) & (rows.sequence_ids % 128 == 1))
        logits[broken] = torch.nan

    tokenizer = byte_level()
    save_model(tmp_path, "qwen3", vocab_size=tokenizer.get_vocab_size())
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    wanted = SamplingParams(temperature=0, max_tokens=12, n=2, ignore_eos=True)
    with LLM(tmp_path, kv_cache_mem_mb=8, num_threads=1) as llm:
        (output,) = llm.generate(["Once upon"], wanted, logits_processors=[break_second])
    whole, broken = output.outputs
    assert (whole.finish_reason, len(whole.token_ids)) == ("length", 12)
    assert (broken.finish_reason, broken.stop_reason) == ("error", "model_produced_nan")
    assert broken.token_ids == whole.token_ids[:3]
    assert whole.text.startswith(broken.text)
