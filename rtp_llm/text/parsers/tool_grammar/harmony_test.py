# SPDX-License-Identifier: Apache-2.0
"""Calls on channels are enforced, whatever else an answer says and however it is cut."""

from __future__ import annotations

import json
import random

import pytest
from jsonschema import Draft202012Validator

from rtp_llm.request.constraints import Grammar
from rtp_llm.testing.text.cutting import read, read_every_way
from rtp_llm.testing.text.matching import ByteVocabulary, matcher
from rtp_llm.text.conversation import Tool, ToolChoice
from rtp_llm.text.grammar.json_schema import json_schema_grammar
from rtp_llm.text.grammar.vocabulary import make_vocabulary
from rtp_llm.text.parsers.calls.harmony import CALL, CHANNEL, END, MESSAGE, START
from rtp_llm.text.parsers.deltas import OutputDelta, ToolArguments, ToolCallBegin
from rtp_llm.text.parsers.registry import call_or_answer, thinking_tags
from rtp_llm.text.parsers.spec import ParserSpec
from rtp_llm.text.parsers.tool_grammar.tool_grammar_test import ADD, NOW, Grammars

CHANNELS = Grammars("openai")
REQUIRED = ToolChoice("required")
AUTO = ToolChoice("auto")
BEGUN = f"{START}assistant"
JSON = '{"a": 1}'
CONSTRAINED = f"{CHANNEL}commentary to=functions.add <|constrain|>json{MESSAGE}"
WRONG = f'{CONSTRAINED}{{"a": "x"}}{CALL}'
SPEC = ParserSpec("openai", "openai_gptoss", tools=(ADD, NOW))


def said_on(channel: str, text: str) -> str:
    return f"{CHANNEL}{channel}{MESSAGE}{text}"


@pytest.mark.parametrize(
    "header",
    [
        CONSTRAINED,
        f"{CHANNEL}commentary to=functions.add json{MESSAGE}",
        f" to=functions.add{CHANNEL}commentary <|constrain|>json{MESSAGE}",
        f" to=functions.add{CHANNEL}commentary json{MESSAGE}",
        f"{BEGUN}{CONSTRAINED}",
        f"{BEGUN} to=functions.add{CHANNEL}commentary json{MESSAGE}",
    ],
)
@pytest.mark.parametrize("choice", [REQUIRED, AUTO])
def test_headers_that_models_write(header: str, choice: ToolChoice) -> None:
    grammar = CHANNELS.make([ADD, NOW], choice)
    text = f"{header}{JSON}{CALL}"
    assert CHANNELS.accepts(grammar, text)
    assert read_every_way(SPEC, text) == [ToolCallBegin(0, "add"), ToolArguments(0, JSON)]
    assert not CHANNELS.accepts(grammar, text.replace(JSON, '{"a": -1}'))
    assert not CHANNELS.accepts(grammar, text.replace("add", "sub"))


def test_a_required_call_is_all_that_comes() -> None:
    grammar = CHANNELS.make([ADD])
    call = f"{CONSTRAINED}{JSON}{CALL}"
    for before in (
        said_on("final", "Hello.") + END,
        said_on("commentary", "I look.") + END,
        said_on("analysis", "hm") + END,
        "Hello.",
    ):
        assert not CHANNELS.accepts(grammar, before + call)
        assert not CHANNELS.accepts(grammar, before)


@pytest.mark.parametrize("parallel", [True, False])
def test_what_may_stand_next_to_calls(parallel: bool) -> None:
    grammar = CHANNELS.make([ADD, NOW], ToolChoice("auto", parallel=parallel))
    call = f"{CONSTRAINED}{JSON}{CALL}"
    for before in (
        said_on("analysis", "hm") + END + BEGUN,
        said_on("commentary", "I look.") + END + BEGUN,
        said_on("analysis", "hm") + END + BEGUN + said_on("commentary", "I look.") + END + BEGUN,
        BEGUN,
        "",
    ):
        assert CHANNELS.accepts(grammar, before + call)
        assert not CHANNELS.accepts(grammar, before + WRONG)
        assert CHANNELS.accepts(grammar, before + said_on("final", "Hello. to=functions.add"))
    assert CHANNELS.accepts(grammar, call + BEGUN + said_on("final", "Done.")) is parallel
    json_answer = f"{CHANNEL}final <|constrain|>json{MESSAGE}[]"
    assert CHANNELS.accepts(grammar, json_answer)


@pytest.mark.parametrize(
    "text",
    [
        f" to=functions.add{said_on('commentary', '{}')}",
        f"to=functions.add{CHANNEL}final{MESSAGE}{{}}",
        f"\n to=add{said_on('analysis', 'hm')}{END}{said_on('final', '{}')}",
        f"{CHANNEL}analysis to=functions.add{MESSAGE}{{}}{CALL}",
        f"{CHANNEL}final to=functions.add{MESSAGE}{{}}{CALL}",
        said_on("analysis", "hm") + END + f"{BEGUN} to=functions.add{MESSAGE}{{}}{CALL}",
        "Hello." + END + BEGUN + WRONG,
    ],
)
def test_no_header_evades_the_schema(text: str) -> None:
    assert not CHANNELS.accepts(CHANNELS.make([ADD, NOW], AUTO), text)


def test_an_answer_of_a_schema_or_a_call() -> None:
    schema = json_schema_grammar({"type": "object", "required": ["x"]}, strict=True)
    ids = {text: 256 + place for place, text in enumerate(CHANNELS.specials)}
    grammar = call_or_answer("openai", CHANNELS.make([ADD]), schema, ids)
    for begun in "", BEGUN:
        assert CHANNELS.accepts(grammar, f"{begun}{CONSTRAINED}{JSON}{CALL}")
        assert CHANNELS.accepts(grammar, begun + said_on("final", '{"x": 1}'))
        constrained = f"{CHANNEL}final <|constrain|>json{MESSAGE}"
        assert CHANNELS.accepts(grammar, f'{begun}{constrained}{{"x": 1}}')
        assert not CHANNELS.accepts(grammar, begun + said_on("final", "{}"))
        assert not CHANNELS.accepts(grammar, f'{begun}{{"x": 1}}')
    assert not CHANNELS.accepts(grammar, WRONG)


def test_the_thinking_before_calls_ends_with_its_message() -> None:
    assert thinking_tags("harmony", before_calls=True) == (f"{CHANNEL}analysis{MESSAGE}", END)
    assert thinking_tags("harmony") == ("", f"{CHANNEL}final{MESSAGE}")
    assert thinking_tags("qwen3", before_calls=True) == thinking_tags("qwen3")


def test_a_model_whose_calls_end_its_answers() -> None:
    """<|call|> is among the ends of gpt-oss, and has to come all the same."""
    vocabulary = ByteVocabulary(CHANNELS.specials)
    call = 256 + CHANNELS.specials.index(CALL)
    made = matcher(CHANNELS.make([ADD]), vocabulary)
    made = type(made)(make_vocabulary(vocabulary, [256, call]), CHANNELS.make([ADD]).text)
    for chunk in CHANNELS.ids_of(CONSTRAINED + JSON):
        assert made.consume_token(chunk)
    assert not made.is_accepting()
    mask = made.compute_bitmask()
    assert [i for i in range(vocabulary.vocab_size) if mask[i // 8] >> i % 8 & 1] == [call]


def walked(grammar: Grammar, chance: random.Random, length: int) -> str:
    """What a model that chooses at random says under a grammar, of at most so many tokens."""
    vocabulary = ByteVocabulary(CHANNELS.specials)
    made = matcher(grammar, vocabulary)
    ids: list[int] = []
    while len(ids) < length:
        mask = made.compute_bitmask()
        allowed = [i for i in range(vocabulary.vocab_size) if mask[i // 8] >> i % 8 & 1]
        special = [token for token in allowed if token >= 256]
        plain = [token for token in allowed if token < 256 and chr(token) in SAID]
        if special and (not plain or chance.random() < 0.3):
            token = chance.choice(special)
        else:
            token = chance.choice(plain or allowed)
        if token == 256:
            break
        assert made.consume_token(token)
        ids.append(token)
    return b"".join(map(vocabulary.token_bytes, ids)).decode()


SAID = 'to=functions.add{}":, 1analysiscommentaryfinal'


@pytest.mark.parametrize("seed", range(60))
def test_random_answers_call_as_the_schemas_say_however_they_are_cut(seed: int) -> None:
    chance = random.Random(seed)
    grammar = CHANNELS.make([ADD, NOW], ToolChoice("auto", parallel=seed % 2 == 0))
    text = walked(grammar, chance, 150)
    deltas = read(SPEC, [text])
    for border in range(1, len(text)):
        assert read(SPEC, [text[:border], text[border:]]) == deltas, (text, border)
    assert read(SPEC, text) == deltas
    for name, arguments in complete_calls(text, deltas):
        tool = {"add": ADD, "now": NOW}[name]
        assert Draft202012Validator(tool.parameters).is_valid(json.loads(arguments)), text


def complete_calls(text: str, deltas: list[OutputDelta]) -> list[tuple[str, str]]:
    names = [delta.name for delta in deltas if isinstance(delta, ToolCallBegin)]
    arguments = [delta.text for delta in deltas if isinstance(delta, ToolArguments)]
    return [*zip(names, arguments, strict=False)][: text.count(CALL)]


def test_walks_call_and_talk() -> None:
    """Of the random answers some have calls, some reasoning, some text."""
    kinds: set[str] = set()
    for seed in range(60):
        grammar = CHANNELS.make([ADD, NOW], ToolChoice("auto", parallel=seed % 2 == 0))
        text = walked(grammar, random.Random(seed), 150)
        deltas = read(SPEC, [text])
        kinds |= {type(delta).__name__ for delta in deltas}
        kinds |= {"complete"} if complete_calls(text, deltas) else set()
    assert kinds == {"ReasoningDelta", "TextDelta", "ToolArguments", "ToolCallBegin", "complete"}


def test_tools_of_other_names() -> None:
    space = Tool("sums.add-up", parameters=ADD.parameters, strict=True)
    grammar = CHANNELS.make([space])
    assert CHANNELS.accepts(grammar, f"{CONSTRAINED}{JSON}{CALL}".replace("add", "sums.add-up"))
