"""Names of models as Ollama has them: a model and its tag."""

from __future__ import annotations

from rtp_llm.server.errors import ApiError

PATH = "/api"
_TAG = ":latest"


def tagged(name: str) -> str:
    """The served name with a tag, as lists of models show it; clients add it themselves."""
    return name if ":" in name.rpartition("/")[2] else name + _TAG


def check_name(asked: str | None, served: str) -> str:
    """The name as it was asked for; raises ApiError 404 for that of another model."""
    if asked and asked not in (served, tagged(served)):
        raise ApiError(
            404,
            f"model {asked!r} not found; this server serves {tagged(served)!r}",
            param="model",
            code="model_not_found",
        )
    return asked or tagged(served)
