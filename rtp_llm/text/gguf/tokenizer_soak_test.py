# SPDX-License-Identifier: Apache-2.0
"""50,000 texts in tokenizers made from GGUF metadata and in their twins."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from rtp_llm.testing.gguf.tokenizer_twins import BYTE_LEVEL, byte_level_pair, sentencepiece_pair
from rtp_llm.testing.gguf.vocabularies import CONTROLS, USER_DEFINED, hard_text

TEXTS = 5_000
ADDED = (*CONTROLS, *USER_DEFINED)


@pytest.mark.parametrize("pre", BYTE_LEVEL)
def test_byte_level_bpe(tmp_path: Path, pre: str) -> None:
    ours, theirs = byte_level_pair(tmp_path, pre)
    chance = random.Random(f"soak {pre}")
    for _ in range(TEXTS):
        text = hard_text(chance, ADDED)
        found = ours.encode(text, add_special_tokens=False).ids
        assert found == theirs.encode(text, add_special_tokens=False).ids, text
        assert ours.decode(found) == theirs.decode(found)


@pytest.mark.parametrize("prefix", [True, False])
def test_bpe_by_scores(tmp_path: Path, prefix: bool) -> None:
    ours, _, plain = sentencepiece_pair(tmp_path, prefix)
    chance = random.Random(f"soak {prefix}")
    for _ in range(TEXTS):
        text = hard_text(chance, ADDED)
        assert ours.encode(text, add_special_tokens=False).ids == plain.encode(text), text
