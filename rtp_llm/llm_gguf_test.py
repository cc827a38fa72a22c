# SPDX-License-Identifier: Apache-2.0
"""Texts in, texts out of a GGUF file alone: config, tokenizer, template and weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rtp_llm import LLM, SamplingParams
from rtp_llm.config.settings import Settings
from rtp_llm.engine.messages import EngineStartError
from rtp_llm.models.config import UnsupportedModelError
from rtp_llm.testing.engine.tiny_llm import GREEDY, SMALL
from rtp_llm.testing.gguf.bert import save_bert_gguf
from rtp_llm.testing.gguf.models import save_gguf
from rtp_llm.testing.gguf.vocabularies import byte_level_values
from rtp_llm.testing.models.encoder_models import expected_states, save_encoder
from rtp_llm.testing.models.transformers_models import expected_tokens, save_model

_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
# In 8 bits activations would choose other tokens now and then.
_SETTINGS = {**SMALL, "dtype": "float32", "gguf_activations": "float"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, object]:
    """A Llama in two files; the tokenizer's vocabulary is the model's."""
    folder = tmp_path_factory.mktemp("model")
    values = byte_level_values("llama-bpe")
    size = len(values["tokenizer.ggml.tokens"])
    wide = {"num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": size}
    model = save_model(folder / "twin", "llama", **wide)
    more = {**values, "tokenizer.chat_template": _TEMPLATE}
    files = save_gguf(folder / "Tiny-Q8_0.gguf", model, "llama", "Q8_0", 2, more)
    return files[0], model


def test_completions_and_chats_equal_those_of_transformers(saved: tuple[Path, object]) -> None:
    file, model = saved
    with LLM(file, **_SETTINGS) as llm:
        prompt = "The house lived, 10,000 ½"
        (answer,) = llm.generate(prompt, GREEDY)
        ids = llm.tokenizer.encode(prompt)
        assert answer.prompt_token_ids == ids and ids[0] == 1
        expected = expected_tokens(model, ids, len(answer.outputs[0].token_ids))
        assert list(answer.outputs[0].token_ids) == expected
        (chat,) = llm.chat([{"role": "user", "content": prompt}], GREEDY)
        assert chat.outputs[0].token_ids
        assert llm.tokenizer.chat_template_source == file.name
        assert {2, 3} <= set(llm.tokenizer.eos_token_ids)  # </s>, and <|im_end|> by its text


def test_the_model_has_the_name_of_the_file(saved: tuple[Path, object]) -> None:
    assert Settings(model=str(saved[0])).model_name == "Tiny-Q8_0"
    assert Settings(model="a/b.GGUF").model_name == "b"


def test_blocks_are_not_quantised_again(saved: tuple[Path, object]) -> None:
    with pytest.raises((UnsupportedModelError, EngineStartError), match="quantized twice"):
        LLM(saved[0], **_SETTINGS, quantization="int8")


def test_dummy_weights_take_the_config_of_the_file(saved: tuple[Path, object]) -> None:
    with LLM(saved[0], **_SETTINGS, load_format="dummy") as llm:
        (answer,) = llm.generate([[5, 6, 7]], SamplingParams(max_tokens=2, ignore_eos=True))
    assert len(answer.outputs[0].token_ids) == 2


def test_an_encoder_gives_the_vectors_of_texts(tmp_path: Path) -> None:
    model = save_encoder(tmp_path / "twin", "bert")
    file = save_bert_gguf(tmp_path / "tiny-bert.gguf", model, pooling_type=2)
    with LLM(file, dtype="float32", num_threads=1) as llm:
        (output,) = llm.embed(["A man is eating foods, Zürich!"], use_tqdm=False)
        ids = output.prompt_token_ids
        # [CLS] a man is eat ##ing food ##s [UNK] zurich ! [SEP]
        assert ids == [2, 5, 6, 7, 8, 14, 9, 15, 1, 11, 12, 3]
        expected = torch.nn.functional.normalize(expected_states(model, ids)[0], dim=0)
        found = torch.tensor(output.outputs.embedding)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
