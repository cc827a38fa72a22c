# SPDX-License-Identifier: Apache-2.0
"""Response options, including the request fields that a response repeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rtp_llm.server.types.jobs import AnswerOptions


@dataclass(frozen=True, kw_only=True)
class ResponseOptions:
    """`echo`: fields of ResponseObject by name; `namespaces`: (namespace, name) of tools that
    were declared in one, by the name the model sees; `seal_reasoning`: give encrypted_content;
    `options`: options for log-probabilities; `inputs`: items of the request, if they are stored."""

    model: str
    echo: Mapping[str, Any] = field(default_factory=dict)
    namespaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    seal_reasoning: bool = False
    options: AnswerOptions = field(default_factory=AnswerOptions)
    inputs: Sequence[dict[str, Any]] = ()
