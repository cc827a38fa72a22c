# SPDX-License-Identifier: Apache-2.0
"""Types of the server's answers, for /openapi.json and for tests that validate answers.

Fields with a default are absent unless the request asked for them.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

FinishReason = Literal["stop", "length", "tool_calls", "function_call", "error"]


class _Answer(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all answers, which have no other fields."""


class PromptTokensDetails(_Answer):
    """Details of the prompt's tokens."""

    cached_tokens: int


class CompletionTokensDetails(_Answer):
    """Tokens of the thinking, and draft tokens of speculative decoding, accepted and not."""

    reasoning_tokens: int | msgspec.UnsetType = msgspec.UNSET
    accepted_prediction_tokens: int | msgspec.UnsetType = msgspec.UNSET
    rejected_prediction_tokens: int | msgspec.UnsetType = msgspec.UNSET


class UsageAnswer(_Answer):
    """Token counts of a request; a prompt counts once whatever `n` is."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | None = None


class TopLogprob(_Answer):
    """One token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(_Answer):
    """The sampled token, and the most likely ones in its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobsAnswer(_Answer):
    """Log-probabilities of a chat answer."""

    content: list[ChatLogprob]
    refusal: None


class PromptLogprob(_Answer):
    """One token of a prompt; `rank`: its place among all, 1 is the most likely."""

    logprob: float
    rank: int
    decoded_token: str


class CalledFunction(_Answer):
    """The function of a call; `arguments`: JSON, as the model wrote it."""

    name: str
    arguments: str


class ToolCall(_Answer):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(_Answer):
    """The answer of the model; its thinking in one of the two fields, or in both."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET
    function_call: CalledFunction | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(_Answer):
    """One of `n` answers; `stop_reason`: a stop of the request that ended it.

    The last two: in a batch of conversations.
    """

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobsAnswer | None
    finish_reason: FinishReason
    stop_reason: str | int | None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatAnswerBody(_Answer):
    """POST /v1/chat/completions without `stream`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageAnswer
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class FunctionDelta(_Answer):
    """The name with the first piece of a call; arguments in all."""

    arguments: str
    name: str | msgspec.UnsetType = msgspec.UNSET


class ToolCallDelta(_Answer):
    """A piece of the call number `index`; the first one has its id."""

    index: int
    function: FunctionDelta
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: Literal["function"] | msgspec.UnsetType = msgspec.UNSET


class ChunkDelta(_Answer):
    """What a chunk adds; the first one has the role."""

    role: Literal["assistant"] | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCallDelta] | msgspec.UnsetType = msgspec.UNSET
    function_call: FunctionDelta | msgspec.UnsetType = msgspec.UNSET


class ChunkChoice(_Answer):
    """One choice of a chunk; the last one has `stop_reason`."""

    index: int
    delta: ChunkDelta
    logprobs: ChatLogprobsAnswer | None
    finish_reason: FinishReason | None
    stop_reason: str | int | msgspec.UnsetType | None = msgspec.UNSET
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatChunk(_Answer):
    """One `data:` event of a streamed chat."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: UsageAnswer | msgspec.UnsetType | None = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class LegacyLogprobsAnswer(_Answer):
    """Log-probabilities of a completion, a list entry for each token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(_Answer):
    """One answer to one prompt; of a streamed one, what it gained. The last has `stop_reason`."""

    index: int
    text: str
    logprobs: LegacyLogprobsAnswer | None
    finish_reason: FinishReason | None
    stop_reason: str | int | msgspec.UnsetType | None = msgspec.UNSET
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | msgspec.UnsetType = msgspec.UNSET
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class CompletionAnswerBody(_Answer):
    """POST /v1/completions; streamed, `usage` is there when it was asked for."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageAnswer | msgspec.UnsetType | None = msgspec.UNSET


class GenerateRequest(_Answer):
    """POST /v1/chat/completions/render, and each prompt of POST /v1/completions/render.

    `sampling_params`: in vLLM's names; a grammar of theirs is Lark.
    """

    request_id: str
    token_ids: list[int]
    sampling_params: dict[str, Any]
    model: str | None
    stream: bool
    stream_options: dict[str, bool] | None
    cache_salt: str | None
    priority: int
    features: None
    kv_transfer_params: None


class TokenizeAnswer(_Answer):
    """POST /tokenize."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeAnswer(_Answer):
    """POST /detokenize."""

    prompt: str


class ModelCard(_Answer):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int | None
    type: Literal["model"]
    display_name: str
    created_at: str
    lifecycle: Literal["active"]


class ModelList(_Answer):
    """GET /v1/models; all of them are on one page."""

    object: Literal["list"]
    data: list[ModelCard]
    first_id: str | None
    last_id: str | None
    has_more: Literal[False]


class LoadedBytes(_Answer):
    """The loading progress of the checkpoint."""

    done: int
    total: int


class HealthAnswer(_Answer):
    """`status` is ready, or why the server is not; then with the reason."""

    status: str
    reason: str | msgspec.UnsetType = msgspec.UNSET
    loading: LoadedBytes | msgspec.UnsetType = msgspec.UNSET


class LivenessAnswer(_Answer):
    """Whether the server is alive."""

    alive: bool


class LoadAnswer(_Answer):
    """The number of open generating requests."""

    server_load: int


class VersionAnswer(_Answer):
    """GET /version."""

    version: str


class ServerInfoAnswer(_Answer):
    """GET /server_info."""

    version: str
    phase: str
    settings: dict[str, str]
    engine: dict[str, Any] | None


class ProfileStarted(_Answer):
    """POST /start_profile: what is recorded, of torch.profiler.ProfilerActivity."""

    activities: list[str]


class ProfileStopped(_Answer):
    """POST /stop_profile: the traces, one of each engine process."""

    files: list[str]


class ErrorDetail(_Answer):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(_Answer):
    """The body of every error response."""

    error: ErrorDetail
