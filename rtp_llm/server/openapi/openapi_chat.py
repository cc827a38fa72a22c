# SPDX-License-Identifier: Apache-2.0
"""The parts of /openapi.json for conversations, tools and constraints, beyond their types.

Fields that depend on others are described by values that are always valid; the rest is described
in words, and leads to 400 errors that the schema does not cover.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rtp_llm.config.refusals import get_refusal
from rtp_llm.request.beam_search import MAX_DIVERSITY_PENALTY, MAX_LENGTH_PENALTY
from rtp_llm.server.turn.render import THINKING_SWITCHES
from rtp_llm.server.types.bounds import MAX_BEAM_WIDTHS
from rtp_llm.server.types.openai_bodies import StreamOptions

Schema = dict[str, Any]
_EMPTY: list[Any] = [None, False, "", [], {}]
_RESULT = ("content", "name")  # of a function
_STRUCTURED = "vLLM's: one of json, regex, choice, grammar, json_object, structural_tag."
_ALIASES = {
    "guided_json": "structured_outputs.json",
    "guided_regex": "structured_outputs.regex",
    "guided_choice": "structured_outputs.choice",
    "guided_grammar": "structured_outputs.grammar",
    "guided_whitespace_pattern": "structured_outputs.whitespace_pattern",
    "json_schema": "structured_outputs.json",
    "regex": "structured_outputs.regex",
    "ebnf": "structured_outputs.grammar",
    "grammar": "structured_outputs.grammar",
    "structural_tag": "structured_outputs.structural_tag",
}


def describe_constraints(properties: Schema) -> None:
    """Describe the constraint fields; only in words, that a request has at most one of them."""
    properties["response_format"]["description"] = "Cannot be combined with another constraint."
    properties["structured_outputs"]["description"] = _STRUCTURED
    for name, meaning in _ALIASES.items():
        properties[name]["description"] = (
            f"As {meaning}; cannot be combined with another constraint."
        )
    describe_structural_tag(properties["structural_tag"])


def describe_structural_tag(tag: Schema) -> None:
    """Describe a structural tag: null, JSON text, or an object of the new or the old form."""
    (written,) = (each for each in tag["anyOf"] if each.get("type") == "object")
    written["anyOf"] = [{"required": ["format"]}, {"required": ["structures", "triggers"]}]


def describe_beams(properties: Schema, most: int) -> None:
    """Describe the fields of a beam search. `most`: of `n`."""
    width = {"type": "integer", "minimum": 1, "maximum": most}
    widths = {"type": "array", "items": width, "maxItems": MAX_BEAM_WIDTHS}
    diversity = {"type": "number", "minimum": 0, "maximum": MAX_DIVERSITY_PENALTY}
    penalty = {"type": "number", "minimum": -MAX_LENGTH_PENALTY, "maximum": MAX_LENGTH_PENALTY}
    for name, kind, said in (
        ("best_of", width, "With use_beam_search the number of beams, otherwise the value of n."),
        (
            "beam_width",
            width,
            "The number of beams, of which the n best are given; above 1 it asks "
            "for a beam search.",
        ),
        ("num_beams", width, "Another name of beam_width."),
        ("variable_num_beams", widths, "The number of beams after each step; the last one holds."),
        ("num_beam_groups", width, "Divides the beams, and not with variable_num_beams."),
        ("diversity_penalty", diversity, "Only 0 without several groups."),
        ("length_penalty", penalty, "Only 1 without a beam search."),
    ):
        properties[name] = {"anyOf": [kind, {"type": "null"}], "description": said}
    properties["use_beam_search"]["description"] = (
        "The most likely sequences instead of samples; a stream has them at its end. Without a "
        "width there are n beams."
    )
    properties["early_stopping"]["description"] = (
        "As in transformers; only false without a beam search."
    )


def describe_chat(
    properties: Schema, *, calls_tools: bool, thinks: bool, variables: Collection[str]
) -> None:
    """Tools and thinking, as far as the model's forms of them are known.

    `variables`: those that a chat template may read.
    """
    if calls_tools:
        properties["tool_choice"]["description"] = "Without tools none and auto alone."
        properties["functions"]["description"] = (
            "The deprecated form of tools; cannot be combined with tools."
        )
        properties["function_call"]["description"] = "Without functions none and auto alone."
    else:
        for name, choice in (("tools", "tool_choice"), ("functions", "function_call")):
            properties[name]["description"] = f"Only with {choice} none. {_reason('tools')}"
        for name in ("tool_choice", "function_call"):
            properties[name] = {"enum": [None, "none", "auto"], "description": _reason("tools")}
    if not thinks and "reasoning_effort" not in variables:
        said = _reason("reasoning_effort")
        properties["reasoning_effort"] = {"enum": [None, "", "none"], "description": said}
    for name in ("thinking_token_budget", "thinking_budget"):
        for each in properties[name].get("anyOf", ()):
            if each.get("type") == "integer":
                each |= {"minimum": -1, "maximum": 2**31 - 1}
        if not thinks:
            properties[name] = {"enum": [None, -1], "description": _reason("thinking_budget")}
    if not thinks and not {*THINKING_SWITCHES} & {*variables}:
        said = _reason("enable_thinking")
        properties["enable_thinking"] = {"enum": [None, False], "description": said}


def without_tools() -> Schema:
    """Fields of a conversation whose chat template does not show tools to the model."""
    said = "The chat template does not show tools to the model."
    none = {"anyOf": [{"type": "null"}, {"type": "array", "maxItems": 0}], "description": said}
    return {"tools": none, "functions": none}


def describe_batch(properties: Schema, most: int) -> None:
    """Describe a batch of conversations. `most`: their maximum number, 0: unknown."""
    conversations = properties["messages"]
    conversations |= {"minItems": 1} | ({"maxItems": most} if most else {})
    conversations["items"]["minItems"] = 1
    said = "Not in a batch of conversations."
    for name, empty in (
        ("stream", False),
        ("tools", []),
        ("functions", []),
        ("n", 1),
        ("best_of", 1),
        ("use_beam_search", False),
        ("beam_width", None),
        ("num_beams", 1),
        ("variable_num_beams", []),
        ("num_beam_groups", 1),
        ("diversity_penalty", 0),
        ("length_penalty", 1),
        ("early_stopping", False),
    ):
        properties[name] = {"enum": [None, empty], "description": said}
    for name in ("tool_choice", "function_call"):
        properties[name] = {"enum": [None, "none", "auto"], "description": said}
    options = {name: {"type": "null"} for name in StreamOptions.__struct_fields__}
    nothing = [{"type": "null"}, {"type": "object", "properties": options}]
    properties["stream_options"] = {"anyOf": nothing, "description": said}


def messages(message: Schema, called: Schema) -> Schema:
    """Of parts those that are served; only the assistant calls tools and functions.

    `called`: a function of a call.
    """
    parts = [_part("text"), _part("refusal")]
    content = [{"type": "string"}, {"type": "null"}, {"type": "array", "items": {"anyOf": parts}}]
    shared = message["properties"] | {"content": {"anyOf": content}, "audio": {"enum": _EMPTY}}
    function_call = {"anyOf": [{"enum": _EMPTY}, called]}
    no_calls = {"tool_calls": {"enum": [None, []]}, "function_call": {"enum": _EMPTY}}
    others = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}
    others["description"] = "A role that the chat template knows."
    kinds = [
        _kind(shared | no_calls, {"enum": ["system", "developer", "user", "tool"]}, "content"),
        _kind(shared | {"function_call": function_call}, {"const": "assistant"}),
        _kind(shared | no_calls | {"name": {"type": "string"}}, {"const": "function"}, *_RESULT),
        _kind(shared | no_calls, others, "content"),
    ]
    return {
        "title": message["title"],
        "description": message["description"],
        "anyOf": kinds,
    }


def _part(name: str) -> Schema:
    properties = {"type": {"const": name}, name: {"type": "string"}}
    return {"type": "object", "properties": properties, "required": ["type", name]}


def _kind(properties: Schema, role: Schema, *required: str) -> Schema:
    properties = properties | {"role": role}
    return {"type": "object", "properties": properties, "required": ["role", *required]}


def _reason(name: str) -> str:
    return get_refusal("request", name).reason
