# SPDX-License-Identifier: Apache-2.0
"""Requests to /api/chat, /api/generate and /api/show."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rtp_llm.server.turn.llama_sampling import LlamaSampling


class OllamaOptions(LlamaSampling, kw_only=True):
    """Sampling, and below the line what is decided when the server starts: taken and not used.

    `num_predict`: most tokens of the answer, below 1: as many as fit.
    """

    num_predict: int | None = None
    tfs_z: float | None = None
    penalize_newline: bool | None = None
    # ---
    num_ctx: int | None = None
    num_keep: int | None = None
    num_batch: int | None = None
    num_gpu: int | None = None
    main_gpu: int | None = None
    num_thread: int | None = None
    numa: bool | None = None
    low_vram: bool | None = None
    f16_kv: bool | None = None
    logits_all: bool | None = None
    vocab_only: bool | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None
    embedding_only: bool | None = None


class OllamaFunctionCall(msgspec.Struct, kw_only=True):
    """The function of a call, and its arguments as an object."""

    name: str
    arguments: dict[str, Any] = {}


class OllamaToolCall(msgspec.Struct, kw_only=True):
    """A call of an earlier answer; not all clients send its id back."""

    function: OllamaFunctionCall
    id: str | None = None


class OllamaMessage(msgspec.Struct, kw_only=True):
    """One message. `tool_name`, `tool_call_id`: of a tool's result; without them it answers the
    calls before it in their order."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[OllamaToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaFunction(msgspec.Struct, kw_only=True):
    """A function that the model may call; `parameters`: JSON Schema of an object."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class OllamaTool(msgspec.Struct, kw_only=True):
    """A tool."""

    function: OllamaFunction
    type: Literal["function"] | None = None


class OllamaBase(msgspec.Struct, kw_only=True):
    """Fields of both. `format`: "json", or the JSON Schema of the answer; `stream`: by default;
    `think`: whether, or how much; `keep_alive`: taken and not used, the model stays loaded."""

    model: str | None = None
    stream: bool | None = None
    format: Literal["json", ""] | dict[str, Any] | None = None
    options: OllamaOptions | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    keep_alive: float | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class OllamaChatRequest(OllamaBase, kw_only=True):
    """POST /api/chat. Without messages nothing is generated."""

    messages: list[OllamaMessage] | None = None
    tools: list[OllamaTool] | None = None


class OllamaGenerateRequest(OllamaBase, kw_only=True):
    """POST /api/generate. `raw`: the prompt is taken as it is, without the chat template; `suffix`:
    what follows the answer. Without a prompt nothing is generated."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    context: list[int] | None = None
    raw: bool | None = None
    images: list[str] | None = None


class OllamaShowRequest(msgspec.Struct, kw_only=True):
    """POST /api/show. `name`: of older clients; the model's own options cannot be changed."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None
