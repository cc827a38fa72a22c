# SPDX-License-Identifier: Apache-2.0
"""Which forms a model writes, by its chat template and its vocabulary."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rtp_llm.text.chat_template import ChatTemplate, ChatTemplateError
from rtp_llm.text.parsers.formats import CALLS
from rtp_llm.text.parsers.read_back import Written, written_calls


@dataclass(frozen=True)
class Detected:
    """Names of forms, None where none was found; ``why``: what identified them, for people."""

    tool_calls: str | None
    reasoning: str | None
    why: str


@dataclass(frozen=True)
class _Rule:
    """A form, and texts of a template that writes it: all of `has`, none of `lacks`.

    ``tokens``: what suffices in the vocabulary where no template shows it.
    """

    form: str
    has: tuple[str, ...]
    lacks: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()

    def fits_template(self, template: str) -> bool:
        return all(text in template for text in self.has) and not any(
            text in template for text in self.lacks
        )

    def fits_tokens(self, vocabulary: Container[str]) -> bool:
        return bool(self.tokens) and all(token in vocabulary for token in self.tokens)


# The first that fits decides, so the specific ones come first.
_CALLS = (
    _Rule("openai", ("<|channel|>", "<|message|>"), tokens=("<|channel|>", "<|constrain|>")),
    _Rule("kimi_k2", ("<|tool_calls_section_begin|>",), tokens=("<|tool_calls_section_begin|>",)),
    _Rule("minimax_m3", ("]<]minimax[>[",), tokens=("]<]minimax[>[",)),
    _Rule("minimax_m2", ("<minimax:tool_call>",), tokens=("<minimax:tool_call>",)),
    _Rule("gemma4", ("<|tool_call>call:",), tokens=("<|tool_call>",)),
    _Rule("cohere_command3", ("<|START_ACTION|>",), tokens=("<|START_ACTION|>",)),
    _Rule("gigachat3", ("<|role_sep|>", "function call")),
    _Rule("mistral", ("[TOOL_CALLS]",), tokens=("[TOOL_CALLS]",)),
    _Rule("deepseek_v4", ("｜DSML｜", "tool_calls>"), ("function_calls>",)),
    _Rule("deepseek_v32", ("｜DSML｜",), tokens=("｜DSML｜",)),
    _Rule("deepseek_v3", ("<｜tool▁calls▁begin｜>", "```json")),
    _Rule("deepseek_v31", ("<｜tool▁calls▁begin｜>",)),
    _Rule("hy_v3", ("<tool_sep",)),
    _Rule("glm47", ("</arg_key><arg_value>",)),
    _Rule("glm45", ("<arg_key>",)),
    _Rule("seed_oss", ("<seed:tool_call>",), tokens=("<seed:tool_call>",)),
    _Rule("qwen3_coder", ("<function=", "<parameter=")),
    _Rule("longcat", ("<longcat_tool_call>",), tokens=("<longcat_tool_call>",)),
    _Rule("olmo3", ("<function_calls>",)),
    _Rule("lfm2", ("<|tool_list_start|>",), tokens=("<|tool_call_start|>",)),
    _Rule("nemotron_json", ("<TOOLCALL>",)),
    _Rule("hermes", ("<tool_call>", "arguments")),
    _Rule("jamba", ("<tool_calls>", "<|bom|>")),
    _Rule("minimax", ("<tool_calls>", "<beginning_of_sentence>")),
    _Rule("hunyuan_a13b", ("<tool_calls>",)),
    _Rule("internlm", ("<|action_start|>", "<|plugin|>"), tokens=("<|action_start|>",)),
    _Rule("granite", ("<|tool_call|>", "<|start_of_role|>")),
    _Rule("phi4_mini", ("<|tool_call|>", "<|/tool_call|>")),
    _Rule("phi4_mini_json", ("<|tool|>", "<|/tool|>")),
    _Rule("llama4_json", ("<|python_start|>", '"parameters"')),
    _Rule("llama4_pythonic", ("<|python_start|>",)),
    _Rule("pythonic", ("[func_name1(",)),
    _Rule("phi4_mini_json", ("functools[",)),
    _Rule("command_r", ("Action:", "```json", "tool_name")),
    _Rule("functionary_v31", ("<function=",)),
    _Rule("llama3_json", ("<|start_header_id|>", '"parameters"'), tokens=("<|python_tag|>",)),
    _Rule("llama3_json", ("<|python_tag|>",)),
)
# `<response>` and `<answer>` stand around the answer itself in forms that are not known here.
_WRAPPED = ("<response>", "<answer>")
_REASONING = (
    _Rule("openai_gptoss", ("<|channel|>", "<|message|>"), tokens=("<|channel|>", "<|constrain|>")),
    _Rule("gemma4", ("<channel|>",), tokens=("<|channel>", "<channel|>")),
    _Rule("minimax_m3", ("mm:think>",), tokens=("<mm:think>", "</mm:think>")),
    _Rule("cohere_command3", ("<|START_THINKING|>",), tokens=("<|START_THINKING|>",)),
    _Rule("mistral", ("[THINK]",), tokens=("[THINK]",)),
    _Rule("seed_oss", ("<seed:think>",), tokens=("<seed:think>",)),
    _Rule("kimi_k2", ("</think>", "<|tool_calls_section_begin|>")),
    _Rule("minimax_m2", ("</think>", "<minimax:tool_call>")),
    _Rule("deepseek_v3", ("</think>", "<｜tool▁calls▁begin｜>", "thinking")),
    _Rule("deepseek_v3", ("</think>", "｜DSML｜"), tokens=("</think>", "｜DSML｜")),
    _Rule("glm45", ("</think>", "<arg_key>")),
    _Rule("olmo3", ("<think>", "<function_calls>")),
    _Rule("qwen3", ("<think>", "enable_thinking"), _WRAPPED),
    _Rule("qwen3", ("</think>", "<tool_call>"), _WRAPPED),
    _Rule("qwen3", ("<think>", "<tool_call>"), _WRAPPED),
    _Rule("deepseek_r1", ("</think>",), _WRAPPED),
    _Rule("deepseek_r1", ("<think>",), _WRAPPED),
)


def detect(
    template: str,
    vocabulary: Container[str],
    special_tokens: Mapping[str, str] = MappingProxyType({}),
) -> Detected:
    """The forms of a model with this chat template ("" without one) and these tokens.

    The form of calls is one that reads a call that the template writes, if it writes any: prose may
    name marks that the calls do not have.
    """
    reasoning, reasoning_why = _first(_REASONING, template, vocabulary)
    written = _written(template, special_tokens)
    if written:
        calls, calls_why = _form_of(written, template, reasoning)
    else:
        calls, calls_why = _first(_CALLS, template, vocabulary)
    return Detected(calls, reasoning, f"tool calls: {calls_why}; reasoning: {reasoning_why}")


def detect_reasoning(template: str, vocabulary: Container[str]) -> str | None:
    """The form of the reasoning alone."""
    return _first(_REASONING, template, vocabulary)[0]


def _written(template: str, special_tokens: Mapping[str, str]) -> list[Written]:
    if not template:
        return []
    try:
        return written_calls(ChatTemplate(template, special_tokens))
    except ChatTemplateError:
        return []  # said where the template is read to be used


def _form_of(
    written: list[Written], template: str, reasoning: str | None
) -> tuple[str | None, str]:
    """The form that reads calls, those that the template has the marks of first, and why."""
    marked = {rule.form: rule for rule in reversed(_CALLS) if rule.fits_template(template)}
    in_order = [*dict.fromkeys(rule.form for rule in _CALLS if rule.form in marked)]
    in_order += [form for form in CALLS if form not in marked]
    for call in written:
        read = {form: call.read_by(form, reasoning) for form in in_order}
        for wanted in (True, False):
            for form in in_order:
                if read[form] is not wanted:
                    continue
                if form in marked:
                    return form, f"{form} (the chat template has {' and '.join(marked[form].has)})"
                return form, f"{form} (it reads the calls that the chat template writes)"
    return None, (
        "none (no known form reads the calls that the chat template writes; "
        "--tool-call-parser sets one)"
    )


def _first(
    rules: tuple[_Rule, ...], template: str, vocabulary: Container[str]
) -> tuple[str | None, str]:
    """A form and why."""
    for rule in rules:
        if rule.fits_template(template):
            return rule.form, f"{rule.form} (the chat template has {' and '.join(rule.has)})"
    for rule in rules:
        if rule.fits_tokens(vocabulary):
            return rule.form, f"{rule.form} (the vocabulary has {' and '.join(rule.tokens)})"
    return None, "none (neither the chat template nor the vocabulary has the marks of one)"
