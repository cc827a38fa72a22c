# SPDX-License-Identifier: Apache-2.0
"""The conversations with tools that training shows, and the template that writes them."""

from __future__ import annotations

import json
import pathlib
import re
from itertools import islice

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from example.demo_model.training import calculator, corpus, data, sums
from rtp_llm.text.chat_template import ChatTemplate

HERE = pathlib.Path(__file__).parent
TWO_TERMS = re.compile(r"(\d+)\D+(\d+)")
PLAIN = ChatTemplate(data.CHAT_TEMPLATE, {})
WITH_TOOLS = ChatTemplate(calculator.CHAT_TEMPLATE, {})


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(HERE / "tokenizer.json"))


def declared(signature, bare=False):
    """A tool as clients declare it."""
    name, parameters = signature.rstrip(")").split("(")
    properties = {each: {"type": "string"} for each in parameters.split(", ") if each}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    function = {"name": name, "description": "It does what it says.", "parameters": schema}
    return function if bare else {"type": "function", "function": function}


def messages_of(chat, as_text):
    """The messages that a client sends; arguments as JSON text, or as transformers wants them."""
    prompt = chat.system.split("<tools>")[0].rstrip("\n")
    messages = [{"role": "system", "content": prompt}] if prompt else []
    for question, answered in chat.turns:
        if question.startswith("<tool_response>"):
            messages.append(
                {"role": "tool", "content": question.split("\n")[1], "tool_call_id": "1"}
            )
        else:
            messages.append({"role": "user", "content": question})
        if not answered.startswith("<tool_call>"):
            messages.append({"role": "assistant", "content": answered})
            continue
        function = json.loads(answered.split("\n")[1])
        if as_text:
            function["arguments"] = json.dumps(function["arguments"])
        calls = [{"type": "function", "id": "1", "function": function}]
        messages.append({"role": "assistant", "content": None, "tool_calls": calls})
    return messages


def tools_of(chat):
    lines = chat.system.split("\n")
    return lines[lines.index("<tools>") + 1 : -1] if "<tools>" in lines else []


def test_the_folder_has_the_template():
    assert (HERE / "chat_template.jinja").read_text() == calculator.CHAT_TEMPLATE


@pytest.mark.parametrize("as_text", [True, False], ids=["as text", "as objects"])
def test_the_template_shows_what_training_shows(tokenizer, as_text):
    reference = AutoTokenizer.from_pretrained(HERE)
    for chat in islice(calculator.conversations(seed=5), 200):
        tools = [declared(signature) for signature in tools_of(chat)]
        messages = messages_of(chat, as_text)
        text = WITH_TOOLS.render(messages, tools=tools, add_generation_prompt=False)
        assert tokenizer.encode(text).ids == data.encode(tokenizer, chat)[0], text
        if not as_text:
            of_reference = reference.apply_chat_template(messages, tools=tools, tokenize=False)
            assert text == of_reference


def test_a_prompt_that_waits_for_the_answer(tokenizer):
    system, case = calculator.held_out_cases(1)[0]
    chat = corpus.Chat(case.turns, system)
    tools = [declared(signature, bare=True) for signature in tools_of(chat)]
    messages = messages_of(chat, as_text=True)
    prompts = data.case_prompts(tokenizer, system, case)
    for answered, prompt in zip((-3, -1), prompts, strict=True):
        text = WITH_TOOLS.render(messages[:answered], tools=tools)
        assert tokenizer.encode(text).ids == prompt


def test_without_tools_nothing_has_changed():
    for chat in islice(corpus.conversations(seed=5), 50):
        messages = messages_of(chat, as_text=True)
        for system in ([], [{"role": "system", "content": "Be kind."}]):
            plain = PLAIN.render([*system, *messages])
            assert WITH_TOOLS.render([*system, *messages], tools=None) == plain
            assert WITH_TOOLS.render([*system, *messages], tools=[]) == plain


def test_calls_with_a_text_and_with_each_other():
    calls = [
        {"id": str(i), "type": "function", "function": {"name": "f", "arguments": f'{{"a": {i}}}'}}
        for i in (1, 2)
    ]
    said = [{"role": "assistant", "content": "Wait.", "tool_calls": calls}]
    text = WITH_TOOLS.render(said, tools=[declared("f(a)")], add_generation_prompt=False)
    shown = '<tool_call>\n{"name": "f", "arguments": {"a": %d}}\n</tool_call>'
    opening = "<|im_start|>system\n<tools>\nf(a)\n</tools><|im_end|>\n<|im_start|>assistant\n"
    assert text == opening + f"Wait.\n{shown % 1}\n{shown % 2}<|im_end|>\n"


def test_a_tool_without_parameters():
    tools = [{"type": "function", "function": {"name": "now"}}]
    assert "<tools>\nnow()\n</tools>" in WITH_TOOLS.render(
        [{"role": "user", "content": "Hi"}], tools=tools
    )


def test_training_never_shows_a_held_out_sum_to_the_tool():
    seen = 0
    for chat in islice(calculator.conversations(1), 20_000):
        for question, answered in chat.turns:
            if "<tool_call>" in answered or " = " in answered:
                seen += 1
                for text in (answered,) if "<tool_response>" in question else (question, answered):
                    a, b = map(int, TWO_TERMS.search(text).groups())
                    assert max(a, b) > sums.LARGEST_TERM or not sums.is_held_out(a, b), text
    assert seen > 20_000


def test_held_out_cases_are_of_many_kinds():
    cases = calculator.held_out_cases(200)
    assert all(sums.is_held_out(case.a, case.b) for _, case in cases)
    assert len({case.question for _, case in cases}) == 200 and len({s for s, _ in cases}) > 60
    assert any("{" in case.response for _, case in cases)
    wrong = [case for _, case in cases if case.said != case.a + case.b]
    assert wrong, "an answer that does not read the tool's response would be right"
