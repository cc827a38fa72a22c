"""`options` of a request to the fields of sampling."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec

from rtp_llm.server.errors import ApiError, bad_request
from rtp_llm.server.ollama.protocol import OllamaOptions
from rtp_llm.server.prepare.parse import is_harmless
from rtp_llm.server.prepare.served_model import ServedModel

# Our field -> theirs; of all that are handed on.
_NAMES = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "seed": "seed",
    "stop": "stop",
    "repetition_penalty": "repeat_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
# Other samplers, and the values with which they ask for nothing.
_SAMPLERS: dict[str, tuple[float, ...]] = {"typical_p": (0, 1), "mirostat": (0,), "tfs_z": (0, 1)}
# Penalties, and the values with which they ask for nothing.
_PENALTIES = {"repeat_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}


class _Named(msgspec.Struct):
    options: dict[str, Any] | None = None


def unknown_options(body: bytes) -> list[str]:
    """The names of options that nobody knows, unless they are empty."""
    given = msgspec.json.decode(body, type=_Named).options or {}
    known = OllamaOptions.__struct_fields__
    return [
        f"options.{name}"
        for name, value in given.items()
        if name not in known and not is_harmless(name, value)
    ]


def sampling_of(options: OllamaOptions) -> dict[str, Any]:
    """The fields of SamplingFields that they set; raises ApiError 400 for what is not there."""
    for name, harmless in _SAMPLERS.items():
        value = getattr(options, name)
        if value is not None and value not in harmless:
            raise _unsupported(name, "This sampling method is not implemented. Leave it out.")
    fields = {ours: getattr(options, theirs) for ours, theirs in _NAMES.items()}
    if options.seed is not None and options.seed < 0:
        fields["seed"] = None  # a random one
    last = options.repeat_last_n
    penalised = [
        name
        for name, none in _PENALTIES.items()
        if getattr(options, name) is not None and getattr(options, name) != none
    ]
    if last == 0:
        fields |= {ours: None for ours, theirs in _NAMES.items() if theirs in _PENALTIES}
        fields["repetition_penalty"] = 1.0
    elif last is not None and last > 0 and penalised:
        raise _unsupported(
            "repeat_last_n",
            f"{penalised[0]} counts the whole sequence here, not its last {last} tokens. Send -1, "
            "or leave it out.",
        )
    return {name: value for name, value in fields.items() if value is not None}


def ignored_options(options: OllamaOptions, model: ServedModel) -> list[str]:
    """What asks for more than there is: a longer context than the server has."""
    wanted = options.num_ctx
    return ["options.num_ctx"] if wanted and wanted > model.limits.max_model_len else []


@contextlib.contextmanager
def in_their_names() -> Iterator[None]:
    """Errors inside name the options as the client knows them."""
    try:
        yield
    except ApiError as error:
        theirs = _NAMES.get(error.param or "")
        if theirs is None or error.param is None:
            raise
        name = f"options.{theirs}"
        text = error.message.replace(error.param, name, 1)
        raise ApiError(error.status, text, param=name, code=error.code) from error


def _unsupported(name: str, reason: str) -> ApiError:
    return bad_request(f"options.{name}: {reason}", f"options.{name}", "unsupported")
