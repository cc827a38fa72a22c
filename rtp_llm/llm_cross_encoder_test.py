# SPDX-License-Identifier: Apache-2.0
"""Scores of a BERT cross-encoder whose tokenizer is vocab.txt: pairs have two token types."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rtp_llm import LLM
from rtp_llm.testing.light_transformers import light_transformers
from rtp_llm.testing.models.encoder_models import save_encoder

with light_transformers():
    from transformers import BertTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["which", "house", "has", "a", "garden", "the", "one", "there", ".", "?"]
QUERY = "Which house has a garden?"
DOCUMENTS = ["The one there.", "a garden", "", "house " * 400]


def test_scores_equal_transformers(tmp_path: Path) -> None:
    model = save_encoder(tmp_path, "bert", of="BertForSequenceClassification", num_labels=1)
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS]))
    theirs = BertTokenizer.from_pretrained(tmp_path)
    with LLM(tmp_path, dtype="float32", num_threads=1) as llm:
        assert llm.ready.tasks == ("score", "classify", "reward")
        outputs = llm.score(QUERY, DOCUMENTS[:3])
        outputs += llm.score(QUERY, DOCUMENTS[3:], truncate_prompt_tokens=-1)
        with pytest.raises(ValueError, match=r"longer than the longest sequence of 320"):
            llm.score(QUERY, DOCUMENTS[3:])
    for document, output in zip(DOCUMENTS, outputs, strict=True):
        pairs, cut = [(QUERY, document)], {"truncation": "only_second", "max_length": 320}
        inputs = theirs(pairs, return_tensors="pt", **cut)
        with torch.inference_mode():
            wanted = model(**inputs).logits[0, 0].sigmoid()
        assert output.outputs.score == pytest.approx(float(wanted), abs=1e-4)
