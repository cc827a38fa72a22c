# SPDX-License-Identifier: Apache-2.0
"""Types of the answers of Ollama's endpoints. Durations are in nanoseconds."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType


class _Plain(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of answers, which omit unset fields."""


class OllamaTopLogprob(_Plain, kw_only=True):
    """An alternative to a token of the answer."""

    token: str
    logprob: float
    bytes: list[int]


class OllamaLogprob(OllamaTopLogprob, kw_only=True):
    """A token of the answer."""

    top_logprobs: list[OllamaTopLogprob] | UnsetType = UNSET


class OllamaCalledFunction(_Plain, kw_only=True):
    """The function of a call; `index`: its number in the answer."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaCall(_Plain, kw_only=True):
    """A call; it comes when it is whole."""

    id: str
    function: OllamaCalledFunction


class OllamaAnswerMessage(_Plain, kw_only=True):
    """The assistant's message; in a stream, its continuation."""

    role: Literal["assistant"] = "assistant"
    content: str = ""
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class OllamaAnswer(_Plain, kw_only=True):
    """A line of a stream, or a whole answer; the figures are those of its end."""

    model: str
    created_at: str
    done: bool = False
    done_reason: Literal["stop", "length", "load"] | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    logprobs: list[OllamaLogprob] | UnsetType = UNSET


class OllamaChatAnswer(OllamaAnswer, kw_only=True):
    """POST /api/chat."""

    message: OllamaAnswerMessage


class OllamaGenerateAnswer(OllamaAnswer, kw_only=True):
    """POST /api/generate."""

    response: str = ""
    thinking: str | UnsetType = UNSET


class OllamaDetails(_Plain, kw_only=True):
    """Of a model. `parameter_size`: in billions or millions, as far as the files tell."""

    parent_model: str = ""
    format: str = "safetensors"
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(_Plain, kw_only=True):
    """A model that can be served. `size`: bytes on the disk."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaTags(_Plain, kw_only=True):
    """GET /api/tags."""

    models: list[OllamaModel]


class OllamaRunningModel(_Plain, kw_only=True):
    """A model that is loaded. `size`, `size_vram`: bytes of its weights and its KV cache."""

    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: str
    size_vram: int
    context_length: int


class OllamaProcesses(_Plain, kw_only=True):
    """GET /api/ps."""

    models: list[OllamaRunningModel]


class OllamaShowAnswer(_Plain, kw_only=True):
    """POST /api/show."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(_Plain, kw_only=True):
    """GET /api/version."""

    version: str
