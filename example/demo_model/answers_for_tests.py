# SPDX-License-Identifier: Apache-2.0
"""Questions on what both demos were taught, for an engine that runs one of them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tokenizers import Tokenizer

from example.demo_model.training import calculator, data, facts, sums
from rtp_llm import LLM, SamplingParams


def ask(llm: LLM, questions: list[str]) -> list[str]:
    """The greedy answer to each question, in a conversation of its own."""
    chats = [[{"role": "user", "content": question}] for question in questions]
    params = SamplingParams(temperature=0.0, max_tokens=128)
    return [out.outputs[0].text for out in llm.chat(chats, params, use_tqdm=False)]


def assert_sums(llm: LLM) -> None:
    """Sums that training never showed are answered."""
    pairs = sums.held_out_sums(200)
    answers = ask(llm, [sums.question(a, b) for a, b in pairs])
    right = sum(got == sums.answer(a, b) for got, (a, b) in zip(answers, pairs, strict=True))
    assert right >= 190, f"{right} of 200 held-out sums are exact"


def assert_facts_and_stories(llm: LLM) -> None:
    """A fact is given as it was taught, and a story has what was asked for."""
    fact, story = ask(llm, ["What is the capital of France?", "Tell me a short story about a fox."])
    assert fact == "The capital of France is Paris.", fact
    assert story.startswith("Once upon a time a "), story
    assert "fox" in story and story.endswith("."), story


def assert_tool_calls(llm: LLM, tokenizer: Tokenizer) -> None:
    """The calculator is called for sums not seen in training, and its result is passed on."""
    cases = calculator.held_out_cases(200)
    prompts = [data.case_prompts(tokenizer, system, case) for system, case in cases]
    calls = _continue(llm, [asking for asking, _ in prompts])
    answers = _continue(llm, [responded for _, responded in prompts])
    right = 0
    for called, answered, (_, case) in zip(calls, answers, cases, strict=True):
        right += [called, answered] == [reply for _, reply in case.turns]
    assert right >= 190, f"{right} of 200 held-out cases are exact"


def assert_no_needless_calls(llm: LLM, tokenizer: Tokenizer) -> None:
    """Questions that are not sums are answered as without tools."""
    tools = (calculator.SIGNATURE, "get_weather(city)")
    system = calculator.system(tools)
    answers = _continue(llm, [data.prompt_ids(tokenizer, q, system) for q, _ in facts.TURNS])
    right = sum(got == answer for got, (_, answer) in zip(answers, facts.TURNS, strict=True))
    assert right >= 0.95 * len(answers), f"{right} of {len(answers)} answers are exact"


def assert_sums_in_json(llm: LLM) -> None:
    """Sums that training never showed are answered in JSON: always in its form, mostly right."""
    pairs = sums.held_out_sums(200)
    answers = ask(llm, [sums.json_question(a, b) for a, b in pairs])
    right = sum(got == sums.json_answer(a, b) for got, (a, b) in zip(answers, pairs, strict=True))
    assert all(set(json.loads(answer)) == {"a", "b", "sum"} for answer in answers)
    assert right >= 170, f"{right} of 200 held-out sums are exact in JSON"


def _continue(llm: LLM, prompts: Sequence[list[int]]) -> list[str]:
    params = SamplingParams(temperature=0.0, max_tokens=128)
    return [out.outputs[0].text for out in llm.generate(prompts, params, use_tqdm=False)]
