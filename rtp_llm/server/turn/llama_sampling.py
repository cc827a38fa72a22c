# SPDX-License-Identifier: Apache-2.0
"""Converts llama.cpp's sampling options, which Ollama shares, to sampling fields."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec

from rtp_llm.server.types.errors import ApiError, bad_request


class LlamaSampling(msgspec.Struct, kw_only=True):
    """llama.cpp's options. `repeat_last_n`: tokens that penalties consider, -1: all, 0: none."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None


# Our field -> theirs, for all options that are passed on.
_NAMES = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "seed": "seed",
    "stop": "stop",
    "repetition_penalty": "repeat_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
# Unsupported samplers, and the values that disable them.
_SAMPLERS: dict[str, tuple[float, ...]] = {
    "mirostat": (0,),
    "tfs_z": (0, 1),
    "dynatemp_range": (0,),
    "dry_multiplier": (0,),
    "xtc_probability": (0,),
    "top_n_sigma": (-1, 0),
}
# Penalties, and the values that disable them.
_PENALTIES = {"repeat_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}


def sampling_of(options: LlamaSampling, place: str = "") -> dict[str, Any]:
    """The SamplingFields that the options set; raises ApiError 400 for unsupported options.

    `place`: the prefix of the options' names in the body, such as "options.".
    """
    for name, harmless in _SAMPLERS.items():
        value = getattr(options, name, None)
        if value is not None and value not in harmless:
            reason = "This sampling method is not implemented. Leave it out."
            raise unsupported(place + name, reason)
    fields = {ours: getattr(options, theirs) for ours, theirs in _NAMES.items()}
    if options.seed is not None and options.seed < 0:
        fields["seed"] = None  # a random one
    if options.typical_p == 0:
        fields["typical_p"] = None  # how clients omit it
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
        raise unsupported(
            f"{place}repeat_last_n",
            f"{penalised[0]} counts the whole sequence here, not its last {last} tokens. Send -1, "
            "or leave it out.",
        )
    return {name: value for name, value in fields.items() if value is not None}


@contextlib.contextmanager
def in_their_names(place: str = "") -> Iterator[None]:
    """Translate field names in errors raised during the block to the client's option names."""
    try:
        yield
    except ApiError as error:
        theirs = _NAMES.get(error.param or "")
        if theirs is None or error.param is None:
            raise
        name = place + theirs
        text = error.message.replace(error.param, name, 1)
        raise ApiError(error.status, text, param=name, code=error.code) from error


def unsupported(name: str, reason: str) -> ApiError:
    """A 400 error for the unsupported option `name`."""
    return bad_request(f"{name}: {reason}", name, "unsupported")
