"""What both demos were taught, asked of an engine that has one of them."""

from __future__ import annotations

from example.demo_model.training import sums
from rtp_llm import LLM, SamplingParams


def ask(llm: LLM, questions: list[str]) -> list[str]:
    """The greedy answer to each question, in a conversation of its own."""
    chats = [[{"role": "user", "content": asked}] for asked in questions]
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
