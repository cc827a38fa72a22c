# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools
import pathlib
import re

import pytest
from tokenizers import Tokenizer

from example.demo_model.answers_for_tests import (
    assert_facts_and_stories,
    assert_no_needless_calls,
    assert_sums,
    assert_sums_in_json,
    assert_tool_calls,
)
from example.demo_model.training import corpus, sums
from rtp_llm import LLM, SamplingParams

HERE = pathlib.Path(__file__).parent
MODEL = HERE
TWO_TERMS = re.compile(r"(\d+)\D+(\d+)")


@pytest.fixture(scope="module")
def llm():
    with LLM(str(MODEL), dtype="float32", max_seq_len=512) as engine:
        yield engine


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL / "tokenizer.json"))


def test_weights_are_small_enough_to_live_in_the_repository():
    assert (MODEL / "model.safetensors").stat().st_size <= 8 * 2**20


@pytest.mark.parametrize(
    ("seed", "mixture"),
    [(1, corpus.USUAL), (2, corpus.MOSTLY_SUMS), (1, corpus.WITH_JSON)],
    ids=["usual", "mostly sums", "with JSON"],
)
def test_training_never_shows_a_held_out_sum(seed, mixture):
    seen = 0
    for chat in itertools.islice(corpus.conversations(seed, mixture), 20_000):
        for question, answered in chat.turns:
            if " = " in answered or '"sum"' in answered:
                seen += 1
                for text in (question, answered):
                    a, b = map(int, TWO_TERMS.search(text).groups())
                    assert not sums.is_held_out(a, b), text
    assert seen > 20_000


def test_the_rule_holds_out_whole_unordered_pairs():
    pairs = sums.held_out_sums(200)
    assert len(set(pairs)) == 200
    assert all(10 <= t <= 99 for pair in pairs for t in pair)
    assert all(sums.is_held_out(b, a) for a, b in pairs)


def test_held_out_sums_are_answered(llm):
    assert_sums(llm)


def test_held_out_sums_are_answered_in_json(llm):
    assert_sums_in_json(llm)


def test_held_out_sums_are_given_to_the_calculator(llm, tokenizer):
    assert_tool_calls(llm, tokenizer)


def test_other_questions_make_no_calls(llm, tokenizer):
    assert_no_needless_calls(llm, tokenizer)


def test_facts_and_stories(llm):
    assert_facts_and_stories(llm)


def test_a_chat_of_several_turns(llm):
    chat = [
        {"role": "user", "content": "What is the capital of Japan?"},
        {"role": "assistant", "content": "The capital of Japan is Tokyo."},
        {"role": "user", "content": "What is 12 + 30?"},
    ]
    (out,) = llm.chat([chat], SamplingParams(temperature=0.0, max_tokens=32), use_tqdm=False)
    assert out.outputs[0].text == "12 + 30 = 42"
