# SPDX-License-Identifier: Apache-2.0
"""Events of a response, validated by the types of OpenAI's package and added up again."""

from __future__ import annotations

import json
from typing import Any, get_args

from openai.types.responses import Response, ResponseStreamEvent

_TYPES = {
    get_args(kind.model_fields["type"].annotation)[0]: kind
    for kind in get_args(get_args(ResponseStreamEvent)[0])
}


def read_events(body: str, first: int = 0) -> list[dict[str, Any]]:
    """The events of a stream from number `first` on, each valid by its type, in their order."""
    events = []
    for number, block in enumerate(body.removesuffix("\n\n").split("\n\n"), first):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        _TYPES[event["type"]].model_validate(event, strict=True)
        events.append(event)
    return events


def add_up(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The response that the deltas make; asserts that each item comes in the right order."""
    begun = 3 if events[0]["response"]["background"] else 2
    words = [event["type"].removeprefix("response.") for event in events[:begun]]
    assert words == ["created", *(["queued"] if begun == 3 else []), "in_progress"]
    statuses = [event["response"]["status"] for event in events[:begun]]
    assert statuses == (["queued"] * 2 if begun == 3 else ["in_progress"]) + ["in_progress"]
    assert all(event["response"]["output"] == [] for event in events[:begun])
    *between, last = events[begun:]
    output: list[dict[str, Any]] = []
    while between:
        between = _take_item(between, output)
    Response.model_validate(last["response"], strict=True)
    assert last["type"] == f"response.{last['response']['status']}"
    assert last["response"]["output"] == output
    return dict(last["response"])


def _take_item(events: list[dict[str, Any]], output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Take the events of one item; gives the rest."""
    added, *events = events
    assert added["type"] == "response.output_item.added"
    item = added["item"]
    assert item["status"] == "in_progress"
    end = next(i for i, e in enumerate(events) if e["type"] == "response.output_item.done")
    inside, done, rest = events[:end], events[end]["item"], events[end + 1 :]
    for event in (added, *inside, events[end]):
        assert event["output_index"] == len(output)
        assert event.get("item_id", item["id"]) == item["id"]
    deltas = [event.pop("delta") for event in inside if event["type"].endswith(".delta")]
    kinds = [event["type"].removeprefix("response.") for event in inside if "delta" not in event]
    text = "".join(deltas)
    if item["type"] == "function_call":
        assert item["arguments"] == ""
        field: dict[str, Any] = {"arguments": text}
        word = "function_call_arguments"
        assert kinds == [f"{word}.delta"] * len(deltas) + [f"{word}.done"]
        assert inside[-1]["arguments"] == text
    else:
        word = "output_text" if item["type"] == "message" else "reasoning_text"
        middle = [f"{word}.delta"] * len(deltas) + [f"{word}.done"]
        assert kinds == ["content_part.added", *middle, "content_part.done"]
        assert inside[0]["part"]["text"] == "" and inside[0]["part"]["type"] == word
        assert inside[-2]["text"] == text
        assert item["content"] == []
        field = {"content": [inside[-1]["part"]]}
        assert inside[-1]["part"]["text"] == text
    sealed = {name: done[name] for name in ("encrypted_content",) if name in done}
    assert done == item | field | sealed | {"status": done["status"]}
    output.append(done)
    return rest
