"""What a preparation must know beside the body."""

from __future__ import annotations

from dataclasses import dataclass

from rtp_llm.server.prepare.sampling import Limits
from rtp_llm.text.generation_defaults import GenerationDefaults
from rtp_llm.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What a preparation must know of the served model and its server.

    `limits`: of the engine, zeros before it is ready; `max_sequences`: those that an empty server
    holds, running and queued; `tool_call_parser` and `reasoning_parser`: forms of the model's
    answers, see rtp_llm.text.parsers; the others are settings.
    """

    name: str
    defaults: GenerationDefaults
    limits: Limits
    max_sequences: int
    max_tokenize_characters: int
    max_logprobs: int = 20
    max_prompt_logprobs: int = 20
    strict_fields: bool = False
    trust_chat_template: bool = False
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    reasoning_fields: tuple[str, ...] = ()
    return_tokens_as_token_ids: bool = False
    vllm_fields: bool = False


@dataclass(frozen=True, kw_only=True)
class ServedModel(ModelFacts):
    """And its tokenizer. `inline`: the caller cannot wait, see NotInline."""

    tokenizer: Tokenizer
    inline: bool = False


class NotInline(Exception):
    """This request may take long although its body is short."""
