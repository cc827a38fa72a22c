# SPDX-License-Identifier: Apache-2.0
"""POST /invocations, Amazon SageMaker's only endpoint: the body decides what is requested."""

from __future__ import annotations

from rtp_llm.server.protocols.openai.chat_request import prepare_chat
from rtp_llm.server.turn.body_kind import BodyKind
from rtp_llm.server.turn.completion import prepare_completion
from rtp_llm.server.turn.parse import decode
from rtp_llm.server.turn.prepared import PreparedChat, PreparedCompletion
from rtp_llm.server.turn.served_model import ServedModel
from rtp_llm.server.types.errors import bad_request
from rtp_llm.server.types.jobs import ChatResponseOptions, CompletionResponseOptions


def prepare_invocation(body: bytes, model: ServedModel) -> PreparedChat | PreparedCompletion:
    """Prepare the body as a chat or as a completion; raises ApiError."""
    content = decode(body)
    if "messages" in content:
        return prepare_chat(content, model)
    if "prompt" in content:
        return prepare_completion(content, model)
    raise bad_request(
        "The body has neither messages, as a chat, nor prompt, as a completion.",
        "messages",
        "missing_required_parameter",
    )


INVOCATION = BodyKind(
    "invocation",
    prepare_invocation,
    response_options=(ChatResponseOptions, CompletionResponseOptions),
)
