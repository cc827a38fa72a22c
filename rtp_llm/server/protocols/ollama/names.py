# SPDX-License-Identifier: Apache-2.0
"""Ollama's model names, which consist of a model and a tag."""

from __future__ import annotations

from rtp_llm.server.turn.served_model import ModelFacts
from rtp_llm.server.types.errors import ApiError

_TAG = ":latest"


def tagged(name: str) -> str:
    """The served name with a tag, as shown in model lists; clients add the tag themselves."""
    return name if ":" in name.rpartition("/")[2] else name + _TAG


def check_name(requested: str | None, model: ModelFacts) -> str:
    """The name as requested, including its tag, or else the model's name.

    Raises ApiError 404 and 403, as ModelFacts.check_name does.
    """
    if not requested:
        return tagged(model.name)
    name = next((each for each in model.names if requested == tagged(each)), requested)
    if name not in model.names:
        served = ", ".join(repr(tagged(each)) for each in model.names)
        raise ApiError(
            404,
            f"model {requested!r} not found; this server serves {served}",
            param="model",
            code="model_not_found",
        )
    model.check_name(name)
    return requested
