# SPDX-License-Identifier: Apache-2.0
"""The served model, as needed to prepare a body."""

from __future__ import annotations

from dataclasses import dataclass, field

from rtp_llm.config.tasks import Task
from rtp_llm.request.params import PoolingType
from rtp_llm.server.turn.sampling import Limits
from rtp_llm.server.types.errors import no_access, unknown_model
from rtp_llm.text.generation_defaults import GenerationDefaults
from rtp_llm.text.pooling_config import PromptTexts
from rtp_llm.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Facts about the served model and its server that preparing a body needs.

    `names`: names that requests may use for it, the first of which appears in answers; `usable`:
    names that the request's API key may use. `limits`: of the engine, zeros until it is ready;
    `max_sequences`: capacity of an idle server, running and queued; `tool_call_parser` and
    `reasoning_parser`: formats of the model's answers, see rtp_llm.text.parsers; `tasks`: what it
    is served for; `vector_size`: numbers of an embedding, 0: unknown; `matryoshka`: to which sizes
    it may be cut, empty: any, None: none; `scored`: the states that have scores; `prompts`: texts
    before inputs that are embedded; the others are settings.
    """

    names: tuple[str, ...]
    usable: tuple[str, ...]
    defaults: GenerationDefaults
    limits: Limits
    max_sequences: int
    max_tokenize_characters: int
    max_logprobs: int = 20
    max_prompt_logprobs: int = 20
    strict_fields: bool = False
    lenient_media: bool = True
    trust_chat_template: bool = False
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    reasoning_fields: tuple[str, ...] = ()
    return_tokens_as_token_ids: bool = False
    vllm_fields: bool = False
    tasks: tuple[Task, ...] = ()
    vector_size: int = 0
    matryoshka: tuple[int, ...] | None = None
    scored: PoolingType = "last"
    prompts: PromptTexts = field(default_factory=PromptTexts)

    @property
    def name(self) -> str:
        """The name that appears in answers."""
        return self.names[0]

    def check_name(self, requested: str) -> None:
        """Raise ApiError: 404 for another model's name, 403 for a name that the key may not use."""
        if requested not in self.names:
            raise unknown_model(requested, self.names)
        if requested not in self.usable:
            raise no_access(requested)


@dataclass(frozen=True, kw_only=True)
class ServedModel(ModelFacts):
    """The facts and the tokenizer. `inline`: the caller must not block, see NotInline.

    `client`: the client of the request, see key_ring.client_of.
    """

    tokenizer: Tokenizer
    inline: bool = False
    client: str = ""


class NotInline(Exception):
    """Preparing this request may take long although its body is short."""
