# SPDX-License-Identifier: Apache-2.0
"""All kinds of bodies by name, for the processes that prepare them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rtp_llm.server.protocols.anthropic.message_turn import COUNT_TOKENS, MESSAGE
from rtp_llm.server.protocols.embeddings.endpoints import ENDPOINTS
from rtp_llm.server.protocols.llama_cpp.infill_turn import INFILL
from rtp_llm.server.protocols.ollama.embeddings import OLLAMA_EMBEDDINGS
from rtp_llm.server.protocols.ollama.ollama_turn import OLLAMA_CHAT, OLLAMA_GENERATE
from rtp_llm.server.protocols.openai.chat_batch import CHAT_BATCH
from rtp_llm.server.protocols.openai.chat_request import CHAT
from rtp_llm.server.protocols.openai.generate_request import RENDER_CHAT, RENDER_COMPLETION
from rtp_llm.server.protocols.openai.invocation import INVOCATION
from rtp_llm.server.protocols.openai.tokenization import DETOKENIZE, TOKENIZE
from rtp_llm.server.protocols.responses.response_turn import COUNT_INPUT, RESPONSE
from rtp_llm.server.turn.body_kind import BodyKind
from rtp_llm.server.turn.completion import COMPLETION
from rtp_llm.server.turn.grammar_source import GRAMMAR

KINDS: Mapping[str, BodyKind[Any]] = {
    kind.name: kind
    for kind in (
        CHAT,
        CHAT_BATCH,
        COMPLETION,
        INVOCATION,
        RESPONSE,
        MESSAGE,
        OLLAMA_CHAT,
        OLLAMA_GENERATE,
        INFILL,
        COUNT_TOKENS,
        COUNT_INPUT,
        RENDER_CHAT,
        RENDER_COMPLETION,
        TOKENIZE,
        DETOKENIZE,
        GRAMMAR,
    )
} | {endpoint.kind.name: endpoint.kind for endpoint in (*ENDPOINTS, *OLLAMA_EMBEDDINGS)}
