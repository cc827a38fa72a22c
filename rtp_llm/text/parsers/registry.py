"""The forms that are known, by the names of vLLM's and SGLang's flags."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from rtp_llm.constraints import Grammar
from rtp_llm.text.conversation import Tool, ToolChoice
from rtp_llm.text.grammar.errors import GrammarError
from rtp_llm.text.parsers.answer import Answer
from rtp_llm.text.parsers.deltas import OutputParser
from rtp_llm.text.parsers.detection import Detected, detect
from rtp_llm.text.parsers.json_calls import TaggedJson
from rtp_llm.text.parsers.parser import Form, Plain, StepsParser, Verbatim
from rtp_llm.text.parsers.source import Malformed, Source, Steps
from rtp_llm.text.parsers.spec import ParserSpec
from rtp_llm.text.parsers.thinking import Thinking
from rtp_llm.text.parsers.tool_grammar import Syntax, grammar_of, json_call

__all__ = [
    "REASONING_FORMS",
    "TOOL_CALL_FORMS",
    "Detected",
    "detect",
    "make_parser",
    "reasoning_is_open",
    "special_texts",
    "thinking_tags",
    "tool_grammar",
]

_CALLS: dict[str, Form] = {
    "hermes": TaggedJson("<tool_call>", "</tool_call>"),
    "longcat": TaggedJson("<longcat_tool_call>", "</longcat_tool_call>"),
    "granite": TaggedJson("<|tool_call|>"),
    "jamba": TaggedJson("<tool_calls>", "</tool_calls>"),
    "hunyuan_a13b": TaggedJson("<tool_calls>", "</tool_calls>"),
    "minimax": TaggedJson("<tool_calls>", "</tool_calls>"),
    "internlm": TaggedJson("<|action_start|><|plugin|>", "<|action_end|>"),
    "phi4_mini_json": TaggedJson("functools"),
}
_SYNTAXES = {
    "hermes": Syntax(
        "<tool_call>", json_call("\n", "arguments", "\n</tool_call>"), between="\n<tool_call>"
    ),
}
_THINK = Thinking("<think>", "</think>")
_REASONING = {
    "qwen3": Thinking("<think>", "</think>", also_ends=("\n<tool_call>",)),
    "deepseek_r1": _THINK,
    "deepseek_v3": Thinking("<think>", "</think>", also_ends=("<｜tool▁calls▁begin｜>",)),
    "glm45": _THINK,
    "kimi_k2": Thinking("<think>", "</think>", also_ends=("<|tool_calls_section_begin|>",)),
    "minimax_m2": _THINK,
    "olmo3": _THINK,
    "step3": _THINK,
    "ernie45": _THINK,
    "nemotron_v3": _THINK,
    "holo2": _THINK,
    "seed_oss": Thinking("<seed:think>", "</seed:think>"),
    "mistral": Thinking("[THINK]", "[/THINK]", also_ends=("[TOOL_CALLS]",)),
}
# Names that SGLang's flags, or older versions of vLLM's, have for the same.
_CALL_ALIASES = {
    "qwen": "hermes",
    "qwen25": "hermes",
}
_REASONING_ALIASES = {
    "deepseek-r1": "deepseek_r1",
    "deepseek-v3": "deepseek_v3",
    "kimi": "kimi_k2",
    "minimax": "minimax_m2",
    "qwen3-thinking": "qwen3",
    "nano_v3": "nemotron_v3",
}
TOOL_CALL_FORMS = (*_CALLS, *_CALL_ALIASES)
REASONING_FORMS = (*_REASONING, *_REASONING_ALIASES)

# A turn begins or ends: no reasoning goes on behind it.
_TURN = re.compile(
    r"<[|｜][^<>|｜\s]{1,40}[|｜]>|\[/?INST\]|</?s>|<(?:start|end)_of_turn>|[\]\[]e?~b?[\]\[]"
)


def make_parser(spec: ParserSpec) -> OutputParser:
    """A parser for one answer. Raises KeyError for a form that is not known."""
    if spec.plain:
        return Verbatim()
    answer = Answer(Source(), spec.tools)
    thinking = None if spec.reasoning is None else _thinking(spec.reasoning)
    form = Plain() if spec.tool_calls is None else _calls(spec.tool_calls)
    return StepsParser(_steps(thinking, spec.reasoning_open, form, answer), answer)


def _steps(thinking: Thinking | None, is_open: bool, form: Form, answer: Answer) -> Steps[None]:
    if thinking is not None:
        try:
            yield from thinking.read(answer.source, is_open)
        except Malformed:  # so much white space is text
            yield answer.give_up()
    yield from form.read(answer)


def _calls(name: str) -> Form:
    return _CALLS[_CALL_ALIASES.get(name, name)]


def _thinking(name: str) -> Thinking:
    return _REASONING[_REASONING_ALIASES.get(name, name)]


def thinking_tags(reasoning: str) -> tuple[str, str]:
    """What begins and what ends the reasoning, as text of the model's tokens."""
    form = _thinking(reasoning)
    return form.begin, form.end


def reasoning_is_open(prompt: str, reasoning: str) -> bool:
    """Whether a rendered prompt ends inside of reasoning: a tag is open in its last turn."""
    form = _thinking(reasoning)
    begin = prompt.rfind(form.begin)
    if begin < 0 or prompt.rfind(form.end) > begin:
        return False
    return _TURN.search(prompt, begin + len(form.begin)) is None


def special_texts(spec: ParserSpec) -> frozenset[str]:
    """Texts that the parser has to see, even where a token for them is special.

    Other special tokens may be left out of the text that it gets.
    """
    texts: set[str] = set()
    if spec.tool_calls is not None:
        texts.update(_calls(spec.tool_calls).markers)
    if spec.reasoning is not None:
        texts.update(thinking_tags(spec.reasoning))
    return frozenset(texts)


def tool_grammar(
    form: str,
    tools: Sequence[Tool],
    choice: ToolChoice,
    special_ids: Mapping[str, int] = MappingProxyType({}),
) -> Grammar | None:
    """The grammar of an answer that calls tools in this form; None: nothing to enforce.

    ``special_ids``: the ids of the tokenizer's special tokens, by their text. Raises GrammarError
    for a strict tool whose schema cannot be enforced, and for a form that cannot.
    """
    name = _CALL_ALIASES.get(form, form)
    if name not in _SYNTAXES:
        raise GrammarError(f"calls in the form {form!r} cannot be enforced by a grammar")
    return grammar_of(_SYNTAXES[name], tools, choice, special_ids)
