# SPDX-License-Identifier: Apache-2.0
"""Prompts with embeddings are computed where their answers are."""

from __future__ import annotations

from pathlib import Path

from rtp_llm.testing.disagg.workers import SIZES, Pair
from rtp_llm.testing.models.spanned_prompts import Image, SpannedPrompt, save_spanned_model


def test_only_prompts_of_token_ids_come_from_a_prefill_worker(tmp_path: Path) -> None:
    oracle = save_spanned_model(tmp_path)
    prompts = [SpannedPrompt.random(9, Image(3, 4, seed=1), 6), SpannedPrompt.random(21)]
    pair = Pair(tmp_path, **SIZES)
    try:
        with_image, text = prompts
        requests = [
            pair.decode.add(
                with_image.ids, inputs=with_image.inputs, max_tokens=6, ignore_eos=True
            ),
            pair.decode.add(text.ids, max_tokens=6, ignore_eos=True),
        ]
        pair.until(lambda: pair.finished(*requests))
        for prompt, request in zip(prompts, requests, strict=True):
            assert pair.decode.outcomes[request].tokens == oracle.answer(prompt, 6)
        assert pair.decode.transfers()["delivered"] == 1
    finally:
        pair.close()
