# SPDX-License-Identifier: Apache-2.0
"""The parts of /openapi.json for Responses and Messages.

Types come from the protocol and events of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import msgspec

from rtp_llm.server.protocols.anthropic import events as messages
from rtp_llm.server.protocols.anthropic.protocol import CountRequest, MessagesRequest
from rtp_llm.server.protocols.responses import events as responses
from rtp_llm.server.protocols.responses.endpoints import MAX_LISTED
from rtp_llm.server.protocols.responses.protocol import CountInputRequest, ResponsesRequest
from rtp_llm.server.types.anthropic_error import PATH, MessageErrorAnswer

Schema = dict[str, Any]
Kind = type[msgspec.Struct]
_COUNT = "/v1/responses/input_tokens"
_ONE = "/v1/responses/{response_id}"
BODIES: Mapping[str, Kind] = {
    "/v1/responses": ResponsesRequest,
    _COUNT: CountInputRequest,
    PATH: MessagesRequest,
    f"{PATH}/count_tokens": CountRequest,
}
ANSWERS: Mapping[str, Kind] = {
    "/v1/responses": responses.ResponseObject,
    _COUNT: responses.InputTokens,
    _ONE: responses.ResponseObject,
    f"{_ONE}/cancel": responses.ResponseObject,
    f"{_ONE}/input_items": responses.ItemList,
    PATH: messages.MessageObject,
    f"{PATH}/count_tokens": messages.CountAnswer,
}
DELETED = responses.DeletedAnswer
CHUNKS: Mapping[str, tuple[Kind, ...]] = {
    "/v1/responses": get_args(responses.Event),
    _ONE: get_args(responses.Event),
    PATH: get_args(messages.Event),
}
ERROR = MessageErrorAnswer
_LISTED: list[Schema] = [
    {"name": "limit", "schema": {"type": "integer", "minimum": 1, "maximum": MAX_LISTED}},
    {"name": "order", "schema": {"enum": ["asc", "desc"]}},
    {"name": "after", "schema": {"type": "string"}},
]
_STREAMED: list[Schema] = [
    {"name": "stream", "schema": {"type": "boolean"}},
    {"name": "starting_after", "schema": {"type": "integer", "minimum": 0}},
]


def parameters_of(path: str, method: str) -> list[Schema]:
    """The path and query parameters of an operation."""
    if not path.startswith(_ONE):
        return []
    name = {"name": "response_id", "in": "path", "required": True, "schema": {"type": "string"}}
    query = _LISTED if path.endswith("/input_items") else []
    if (path, method) == (_ONE, "get"):
        query = _STREAMED
    return [name, *({"in": "query"} | each for each in query)]


def describe_lengths(components: dict[str, Schema]) -> None:
    """A max_tokens of Messages that does not fit means as much as fits."""
    components[MessagesRequest.__name__]["properties"]["max_tokens"].pop("maximum", None)


def is_of_messages(path: str) -> bool:
    """Whether the errors of a path have Anthropic's shape."""
    return path.startswith(PATH)
