# SPDX-License-Identifier: Apache-2.0
"""Events of a message, validated by the types of Anthropic's package and added up again."""

from __future__ import annotations

import json
from typing import Any, get_args

from anthropic.types import Message, RawMessageStreamEvent
from pydantic_core import from_json

_TYPES = {
    get_args(kind.model_fields["type"].annotation)[0]: kind
    for kind in get_args(get_args(RawMessageStreamEvent)[0])
}
# What a delta of each type adds, and to which field of its block.
_FIELDS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
    "input_json_delta": ("partial_json", "input"),
}


def read_events(body: str) -> list[dict[str, Any]]:
    """The events of a stream, each valid by its type, in their order; without pings."""
    events = []
    for block in body.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] in _TYPES:
            _TYPES[event["type"]].model_validate(event, strict=True)
        else:
            assert event["type"] in ("ping", "error")
        if event["type"] != "ping":
            events.append(event)
    return events


def add_up(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that the deltas make; asserts that each block comes in the right order."""
    start, *between, delta, stop = events
    message: dict[str, Any] = dict(start["message"])
    assert start["type"] == "message_start" and message["content"] == []
    assert message["stop_reason"] is None and message["stop_sequence"] is None
    assert stop == {"type": "message_stop"}
    content: list[dict[str, Any]] = []
    while between:
        end = next(i for i, e in enumerate(between) if e["type"] == "content_block_stop")
        content.append(_block(between[: end + 1], len(content)))
        between = between[end + 1 :]
    message |= {"content": content, "usage": delta["usage"], **delta["delta"]}
    Message.model_validate(message, strict=True)
    return message


def _block(events: list[dict[str, Any]], number: int) -> dict[str, Any]:
    start, *deltas, _ = events
    assert all(event["index"] == number for event in events)
    assert start["type"] == "content_block_start"
    block: dict[str, Any] = start["content_block"]
    added: dict[str, str] = {}
    for event in deltas:
        assert event["type"] == "content_block_delta"
        name, field = _FIELDS[event["delta"]["type"]]
        assert not block[field]
        added[field] = added.get(field, "") + event["delta"][name]
    if block["type"] == "thinking":
        assert deltas[-1]["delta"]["type"] == "signature_delta"
        assert added["signature"]
    if "input" in added:
        block["input"] = from_json(added.pop("input") or "{}", allow_partial=True)
    return block | added
