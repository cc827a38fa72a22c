# SPDX-License-Identifier: Apache-2.0
"""POST /invocations, Amazon SageMaker's only endpoint: the body decides what is requested."""

from __future__ import annotations

from rtp_llm.server.errors import bad_request
from rtp_llm.server.prepare.chat import prepare_chat
from rtp_llm.server.prepare.completion import prepare_completion
from rtp_llm.server.prepare.parse import decode
from rtp_llm.server.prepare.prepared import PreparedChat, PreparedCompletion
from rtp_llm.server.prepare.served_model import ServedModel


def prepare_invocation(body: bytes, model: ServedModel) -> PreparedChat | PreparedCompletion:
    """Prepare the body as a chat or as a completion; raises ApiError."""
    content = decode(body)
    if "messages" in content:
        return prepare_chat(body, model)
    if "prompt" in content:
        return prepare_completion(body, model)
    raise bad_request(
        "The body has neither messages, as a chat, nor prompt, as a completion.",
        "messages",
        "missing_required_parameter",
    )
