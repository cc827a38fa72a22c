# SPDX-License-Identifier: Apache-2.0
"""The fields of requests. Absent and null mean the same: the default."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class StreamOptions(msgspec.Struct, kw_only=True):
    """`include_obfuscation` only pads the stream, so it is taken and not used.

    `continuous_usage_stats`: with `include_usage`, every chunk has the usage so far.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class JsonSchemaFormat(msgspec.Struct, kw_only=True):
    """A schema; `strict`: what cannot be enforced of it is refused, not left out."""

    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    """Of an answer; the last fields are those of structural tags, new and old."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    format: dict[str, Any] | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True):
    """vLLM's: exactly one of the first six, and how JSON is written."""

    json: str | dict[str, Any] | bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None


class ConstraintFields(msgspec.Struct, kw_only=True):
    """Constraints on an answer, as named by OpenAI, vLLM (new and old), SGLang and llama.cpp."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    json_schema: str | dict[str, Any] | None = None
    regex: str | None = None
    ebnf: str | None = None
    grammar: str | None = None
    structural_tag: str | dict[str, Any] | None = None


class SamplingFields(ConstraintFields, kw_only=True):
    """Fields that /v1/chat/completions and /v1/completions share; below the line: extensions."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    # ---
    stop_regex: str | list[str] | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: str | list[str] | None = None
    logprob_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    add_special_tokens: bool | None = None
    priority: int | None = None
    speculate: bool | None = None
    cache_salt: str | None = None


class BeamFields(SamplingFields, kw_only=True):
    """Fields of a beam search: vLLM's, and from `num_beams` on those of transformers and of the
    reference: `variable_num_beams` is the number of beams after each step."""

    best_of: int | None = None
    use_beam_search: bool | None = None
    beam_width: int | None = None
    num_beams: int | None = None
    variable_num_beams: list[int] | None = None
    num_beam_groups: int | None = None
    diversity_penalty: float | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None


class CalledFunction(msgspec.Struct, kw_only=True):
    """The function of a call and its arguments: JSON in a text, or the object itself."""

    name: str
    arguments: str | dict[str, Any] = ""


class MessageToolCall(msgspec.Struct, kw_only=True):
    """A call that the assistant made."""

    function: CalledFunction
    id: str = ""
    type: Literal["function"] = "function"


class Message(msgspec.Struct, kw_only=True):
    """One message of a conversation; `audio` is refused unless it is empty.

    `role`: system, developer, user, assistant, tool, function, or one that the template knows.
    Fields that are not listed are taken and not used: clients send back whole answers.
    """

    role: str
    content: str | list[dict[str, Any]] | msgspec.UnsetType | None = msgspec.UNSET
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None
    function_call: Any = None
    audio: Any = None


class FunctionDefinition(msgspec.Struct, kw_only=True):
    """A function that the model may call; `parameters`: JSON Schema of an object."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(msgspec.Struct, kw_only=True):
    """A tool."""

    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(msgspec.Struct, kw_only=True):
    """The name of a declared function."""

    name: str


class NamedTool(msgspec.Struct, kw_only=True):
    """A declared tool."""

    function: NamedFunction
    type: Literal["function"] = "function"


class AllowedTools(msgspec.Struct, kw_only=True):
    """Those of the declared tools that may be called."""

    mode: Literal["auto", "required"]
    tools: list[NamedTool]


class ToolChoiceObject(msgspec.Struct, kw_only=True):
    """A function that must be called, or those that may be."""

    type: Literal["function", "allowed_tools"] = "function"
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


class ChatFields(BeamFields, kw_only=True):
    """The fields of chats besides their messages."""

    tools: list[ToolDefinition] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoiceObject | None = None
    parallel_tool_calls: bool | None = None
    functions: list[FunctionDefinition] | None = None
    function_call: Literal["none", "auto"] | NamedFunction | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    reasoning_effort: str | None = None
    # ---
    enable_thinking: bool | None = None
    thinking_token_budget: int | None = None
    thinking_budget: int | None = None
    include_reasoning: bool | None = None
    echo: bool | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class ChatRequest(ChatFields, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[Message]


class BatchChatRequest(ChatFields, kw_only=True):
    """POST /v1/chat/completions/batch, as vLLM has it: several conversations, a choice for each."""

    messages: list[list[Message]]


class CompletionRequest(BeamFields, kw_only=True):
    """POST /v1/completions. `prompt`: a text, texts, token ids, or lists of token ids.

    `suffix`: what follows the answer, for models that fill in the middle.
    """

    prompt: str | list[str | int | list[int]]
    suffix: str | None = None
    echo: bool | None = None
    logprobs: int | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /tokenize: a text (`prompt`) or a conversation (`messages`)."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[ToolDefinition] | None = None
    functions: list[FunctionDefinition] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None
    documents: list[dict[str, Any]] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[int]
    skip_special_tokens: bool | None = None
