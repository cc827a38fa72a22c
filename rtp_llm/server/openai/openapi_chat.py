# SPDX-License-Identifier: Apache-2.0
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


def describe_constraints(properties: Schema) -> None:
    """Of any type that is taken; in words: a request has one of them at most."""
    properties["response_format"]["description"] = "Beside no other constraint."
    properties["structured_outputs"]["description"] = _STRUCTURED
    for name, meaning in _ALIASES.items():
        properties[name]["description"] = f"As {meaning}; beside no other constraint."
    describe_structural_tag(properties["structural_tag"])


def describe_structural_tag(tag: Schema) -> None:
    """Null, JSON in a text, or an object of the new form or the old one."""
    (written,) = (each for each in tag["anyOf"] if each.get("type") == "object")
    written["anyOf"] = [{"required": ["format"]}, {"required": ["structures", "triggers"]}]


def describe_chat(properties: Schema, *, calls_tools: bool, thinks: bool) -> None:
    """Tools and thinking, as far as the model's forms of them are known."""
    if calls_tools:
        properties["tool_choice"]["description"] = "Without tools none and auto alone."
        properties["functions"]["description"] = "The old form of tools; not beside them."
        properties["function_call"]["description"] = "Without functions none and auto alone."
    else:
        for name in ("tools", "functions"):
            properties[name] = {"enum": [None, []], "description": _reason("tools")}
        for name in ("tool_choice", "function_call"):
            properties[name] = {"enum": [None, "none", "auto"], "description": _reason("tools")}
    if not thinks:
        said = "Or a text, if the template names it."
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


def describe_batch(properties: Schema, most: int) -> None:
    """What several conversations of one request may have. `most`: of them, 0: not known."""
    conversations = properties["messages"]
    conversations |= {"minItems": 1} | ({"maxItems": most} if most else {})
    conversations["items"]["minItems"] = 1
    said = "Not in a batch of conversations."
    for name, empty in (("stream", False), ("tools", []), ("functions", []), ("n", 1)):
        properties[name] = {"enum": [None, empty], "description": said}
    for name in ("tool_choice", "function_call"):
        properties[name] = {"enum": [None, "none", "auto"], "description": said}
    properties["stream_options"] = {"enum": [None, {}], "description": said}


def messages(message: Schema) -> Schema:
    """Of roles and parts those that are served; only the assistant calls tools."""
    part: Schema = {"type": "object", "required": ["type", "text"]}
    part["properties"] = {"type": {"const": "text"}, "text": {"type": "string"}}
    content = [{"type": "string"}, {"type": "null"}, {"type": "array", "items": part}]
    calls = message["properties"]["tool_calls"]
    empty = {name: {"enum": _EMPTY} for name in ("function_call", "audio")}
    kinds = []
    for roles, called, required in (
        (["system", "developer", "user", "tool"], {"enum": [None, []]}, ["role", "content"]),
        (["assistant"], calls, ["role"]),
    ):
        own: Schema = {"role": {"enum": roles}, "content": {"anyOf": content}, "tool_calls": called}
        properties = message["properties"] | empty | own
        kinds.append({"type": "object", "properties": properties, "required": required})
    return {
        "title": message["title"],
        "description": message["description"],
        "anyOf": kinds,
    }


def _reason(name: str) -> str:
    return get_refusal("request", name).reason
