"""What /openapi.json says of conversations, tools and constraints beyond their types.

Fields that depend on others are described by values that are good in any case; the rest is said in
words, and has a 400 that no schema foresees.
"""

from __future__ import annotations

from typing import Any

from rtp_llm.config.refusals import get_refusal

Schema = dict[str, Any]
_EMPTY: list[Any] = [None, False, "", [], {}]
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


def nothing(otherwise: str) -> Schema:
    """A field that may be left out; `otherwise`: what else it may be."""
    return {"enum": [None], "description": otherwise}


def describe_constraints(properties: Schema) -> None:
    """A request has one of them at most."""
    formats: list[Any] = [None, {"type": "text"}, {"type": "json_object"}]
    said = "Or a json_schema or structural_tag; beside no other constraint."
    properties["response_format"] = {"enum": formats, "description": said}
    properties["structured_outputs"] = nothing(_STRUCTURED)
    for name, meaning in _ALIASES.items():
        properties[name] = nothing(f"As {meaning}.")


def describe_chat(properties: Schema, *, calls_tools: bool, thinks: bool) -> None:
    """Tools and thinking, as far as the model's forms of them are known."""
    if not calls_tools:
        properties["tools"] = {"enum": [None, []], "description": _reason("tools")}
    choices = [None, "none", "auto"]
    said = "With tools also required, one function, or those that are allowed."
    properties["tool_choice"] = {"enum": choices, "description": said}
    properties["functions"] = nothing("The old form of tools; not beside them.")
    properties["function_call"] = {
        "enum": [None, "none", "auto"],
        "description": "With functions also one of them.",
    }
    said = "Or a text, if the template names it or the model's form of thinking is known."
    properties["reasoning_effort"] = {"enum": [None, "", "none"], "description": said}
    for name in ("thinking_token_budget", "thinking_budget"):
        for each in properties[name].get("anyOf", ()):
            if each.get("type") == "integer":
                each |= {"minimum": -1, "maximum": 2**31 - 1}
        if not thinks:
            properties[name] = {"enum": [None, -1], "description": _reason("thinking_budget")}
    if not thinks:
        properties["enable_thinking"] = {
            "enum": [None, False],
            "description": _reason("enable_thinking"),
        }


def messages(message: Schema) -> Schema:
    """Of roles and parts those that are served; only the assistant calls tools."""
    part: Schema = {"type": "object", "required": ["type", "text"]}
    part["properties"] = {"type": {"const": "text"}, "text": {"type": "string"}}
    content = [{"type": "string"}, {"type": "array", "items": part}]
    calls = message["properties"]["tool_calls"]
    empty = {name: {"enum": _EMPTY} for name in ("function_call", "audio")}
    kinds = []
    for roles, called in (
        (["system", "developer", "user", "tool"], {"enum": [None, []]}),
        (["assistant"], calls),
    ):
        own: Schema = {"role": {"enum": roles}, "content": {"anyOf": content}, "tool_calls": called}
        properties = message["properties"] | empty | own
        kinds.append({"type": "object", "properties": properties, "required": ["role", "content"]})
    return {
        "title": message["title"],
        "description": message["description"],
        "anyOf": kinds,
    }


def _reason(name: str) -> str:
    return get_refusal("request", name).reason
