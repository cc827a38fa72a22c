# SPDX-License-Identifier: Apache-2.0
"""How a response is shown: what the request said that the answer repeats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rtp_llm.server.prepare.jobs import AnswerOptions


@dataclass(frozen=True, kw_only=True)
class ResponseForm:
    """`echo`: fields of ResponseObject by name; `namespaces`: (namespace, name) of the tools that
    were declared in one, by the name that the model is told; `seal_reasoning`: give
    encrypted_content; `options`: what is shown of log-probabilities."""

    model: str
    echo: Mapping[str, Any] = field(default_factory=dict)
    namespaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    seal_reasoning: bool = False
    options: AnswerOptions = field(default_factory=AnswerOptions)
