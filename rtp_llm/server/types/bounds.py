# SPDX-License-Identifier: Apache-2.0
"""Limits on the number of items in a request; docs/serving.md lists them under Limits."""

from __future__ import annotations

from typing import Any

from rtp_llm.server.types.errors import bad_request

MAX_FIELDS = 256  # at the top level of the body
MAX_DEPTH = 64  # nesting of lists and objects
MAX_MESSAGES = 8192
MAX_TOOLS = 1024
MAX_PARTS = 16384  # content parts of all messages together
MAX_LOGIT_BIAS = 4096
MAX_STOP_TOKEN_IDS = 4096
MAX_DETOKENIZE = 2**20
MAX_BEAM_WIDTHS = 1024  # of variable_num_beams
MAX_CACHE_SALT = 1024  # characters; the prefix cache keeps it with each prompt
MAX_INPUTS = 2048  # texts of one request for embeddings, scores or labels; documents to rerank
MAX_INPUT_TOKENS = 2**20  # of all of them together


def check_count(name: str, count: int, most: int, what: str) -> None:
    """Raise ApiError 400, naming both numbers, if there are too many."""
    if count > most:
        raise bad_request(
            f"{name}: {count} {what} are too many; at most {most} are taken.",
            param=name,
            code="too_many",
        )


def check_bounds(content: dict[str, Any]) -> None:
    """Raise ApiError 400 if a body exceeds any of the limits; types are checked elsewhere."""
    if len(content) > MAX_FIELDS:
        raise bad_request(
            f"The body has {len(content)} fields; at most {MAX_FIELDS} are taken.", code="too_many"
        )
    _check_list(content, "messages", MAX_MESSAGES, "messages")
    if isinstance(items := content.get("input"), list):  # texts are counted elsewhere
        check_count("input", sum(type(each) is dict for each in items), MAX_MESSAGES, "items")
    _check_list(content, "logit_bias", MAX_LOGIT_BIAS, "entries")
    _check_list(content, "stop_token_ids", MAX_STOP_TOKEN_IDS, "token ids")
    _check_list(content, "variable_num_beams", MAX_BEAM_WIDTHS, "widths")
    _check_list(content, "tokens", MAX_DETOKENIZE, "token ids")
    if isinstance(salt := content.get("cache_salt"), str):
        check_count("cache_salt", len(salt), MAX_CACHE_SALT, "characters")
    for name in ("messages", "input"):
        _check_parts(name, content.get(name))
    _check_depth(content)


def _check_list(content: dict[str, Any], name: str, most: int, what: str) -> None:
    value = content.get(name)
    if isinstance(value, list | dict):
        check_count(name, len(value), most, what)


def _check_parts(name: str, messages: object) -> None:
    if not isinstance(messages, list):
        return
    conversations = [each if isinstance(each, list) else [each] for each in messages]
    flat = [
        message
        for each in conversations
        if type(next(iter(each), None)) is not int  # a prompt
        for message in each
        if type(message) is not str
    ]
    check_count(name, len(flat), MAX_MESSAGES, "messages")
    contents = [message.get("content") for message in flat if isinstance(message, dict)]
    parts = sum(len(content) for content in contents if isinstance(content, list))
    check_count(name, parts, MAX_PARTS, "content parts")


def _check_depth(content: dict[str, Any]) -> None:
    level: list[Any] = [content]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for outer in level
            for item in (outer.values() if type(outer) is dict else outer)
            if type(item) is dict or type(item) is list
        ]
        if not level:
            return
    raise bad_request(
        f"The body is nested too deeply; at most {MAX_DEPTH} levels are taken.", code="invalid_json"
    )
