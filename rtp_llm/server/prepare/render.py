"""Messages of a request to the text of its prompt."""

from __future__ import annotations

from typing import Any

from rtp_llm.server.errors import bad_request
from rtp_llm.server.openai.protocol import ChatRequest, TokenizeRequest
from rtp_llm.server.prepare.parse import refused, template_variables
from rtp_llm.server.prepare.served_model import NotInline, ServedModel
from rtp_llm.text.chat_template import ChatTemplateError


def check_template(request: ChatRequest | TokenizeRequest, model: ServedModel) -> None:
    """Raise ApiError 400 for a template of the request's own that is not trusted."""
    if request.chat_template and not model.trust_chat_template:
        raise refused("chat_template", "chat_template")


def render(
    request: ChatRequest | TokenizeRequest, messages: list[dict[str, Any]], model: ServedModel
) -> str:
    """The prompt's text; raises ApiError, and NotInline where rendering may take long."""
    add, final = request.add_generation_prompt, bool(request.continue_final_message)
    if add and final:
        raise bad_request(
            "continue_final_message and add_generation_prompt cannot both be true.",
            "continue_final_message",
            "invalid_value",
        )
    template = request.chat_template or None
    check_template(request, model)
    if model.inline and template is not None:
        raise NotInline  # even compiling it may take long: constants are folded
    try:
        variables = _variables(request, model)
        if model.inline and not all(isinstance(each, _PLAIN) for each in variables.values()):
            raise NotInline
        return model.tokenizer.apply_chat_template(
            messages,
            add is not False and not final,
            continue_final_message=final,
            chat_template=template,
            **variables,
        )
    except ChatTemplateError as error:
        text = str(error)
        raise bad_request(
            text[:1].upper() + text[1:] + ".",
            param="messages" if template is None else "chat_template",
            code="chat_template",
        ) from error


# Variables that a template can only look at: no numbers to count up to, no lists to walk.
_PLAIN = (bool, str, type(None))


def _variables(request: ChatRequest | TokenizeRequest, model: ServedModel) -> dict[str, Any]:
    """Those of the client; `reasoning_effort` is one where the template reads it."""
    variables = template_variables(request.chat_template_kwargs)
    if isinstance(request, ChatRequest) and request.reasoning_effort:
        read = model.tokenizer.template_variables(request.chat_template or None)
        if "reasoning_effort" not in read:
            raise refused("reasoning_effort", "reasoning_effort")
        variables.setdefault("reasoning_effort", request.reasoning_effort)
    return variables
