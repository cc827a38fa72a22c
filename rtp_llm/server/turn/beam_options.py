# SPDX-License-Identifier: Apache-2.0
"""The fields of a request that ask for a beam search."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from rtp_llm.request.beam_search import MAX_LENGTH_PENALTY, BeamSearch
from rtp_llm.request.sampling_params import MAX_SEQUENCES
from rtp_llm.server.turn.parse import is_harmless, refused
from rtp_llm.server.turn.served_model import ModelFacts
from rtp_llm.server.types.errors import ApiError, bad_request
from rtp_llm.server.types.openai_bodies import BeamFields

R = TypeVar("R", bound=BeamFields)

# Beams are not sampled: the values that leave the model's distribution as it is, the first of which
# is set whatever the model's folder says.
_PLAIN: dict[str, tuple[float, ...]] = {
    "temperature": (0.0, 1.0),
    "top_p": (1.0,),
    "top_k": (0, -1),
    "min_p": (0.0,),
    "typical_p": (1.0,),
}
_NOT_COMBINED = {
    "stop_regex": "a beam search ends sequences by tokens and stop strings: send stop",
    "logprob_token_ids": "a beam search names the most likely tokens: send logprobs",
}


def with_beams(request: R, model: ModelFacts) -> tuple[R, BeamSearch | None]:
    """The request with as many sequences as there are beams, and how these are searched; None: it
    is sampled.

    `use_beam_search` asks for a search of `beam_width`, `num_beams` or `best_of` beams, or as many
    as `variable_num_beams` has at most, else of `n`; so does a width above 1. The `n` best are
    given.

    Raises:
        ApiError: 400, for widths that contradict each other, and for what a search cannot have.
    """
    widths = _widths(request)
    if not _searches(request, widths):
        _check_sampled(request, widths)
        return request, None
    width = _width(request, widths, model)
    _check_combined(request)
    best = request.n if widths or request.n is None else width
    search = BeamSearch(
        length_penalty=1.0 if request.length_penalty is None else request.length_penalty,
        early_stopping=request.early_stopping or False,
        num_return_sequences=best or 1,
        num_beam_groups=1 if request.num_beam_groups is None else request.num_beam_groups,
        diversity_penalty=request.diversity_penalty or 0.0,
        variable_num_beams=tuple(request.variable_num_beams or ()),
    )
    if problem := search.problem(width):
        name = re.split(r"\W", problem, maxsplit=1)[0]
        raise bad_request(f"{problem}.", name, "invalid_value")
    kept = (request.variable_num_beams or [width])[-1]
    if not 1 <= (request.n or 1) <= kept:
        raise _invalid(
            "n", f"{request.n} sequences are not from 1 to the {kept} beams that are kept"
        )
    plain: dict[str, Any] = {name: values[0] for name, values in _PLAIN.items()}
    return msgspec.structs.replace(request, n=width, **plain), search


def _widths(request: BeamFields) -> dict[str, int]:
    """The number of beams under each name that gives it."""
    widths = {name: getattr(request, name) for name in ("beam_width", "num_beams", "best_of")}
    if request.variable_num_beams:
        widths["variable_num_beams"] = max(request.variable_num_beams)
    return {name: width for name, width in widths.items() if width is not None}


def _searches(request: BeamFields, widths: dict[str, int]) -> bool:
    wide = [name for name in widths if name != "best_of" and widths[name] != 1]
    if wide and request.use_beam_search is False:
        raise _invalid(wide[0], f"{widths[wide[0]]} beams are asked for without use_beam_search")
    return bool(request.use_beam_search or wide)


def _check_sampled(request: BeamFields, widths: dict[str, int]) -> None:
    """Raise ApiError 400 for what only a search has."""
    if widths.get("best_of") not in (None, request.n or 1):
        raise refused("best_of", "best_of")
    for name in ("length_penalty", "early_stopping", "num_beam_groups", "diversity_penalty"):
        if not is_harmless(name, getattr(request, name)):
            raise _invalid(name, "only with use_beam_search")


def _width(request: BeamFields, widths: dict[str, int], model: ModelFacts) -> int:
    name, width = next(iter(widths.items()), ("n", request.n or 1))
    for other, value in widths.items():
        if value != width:
            raise _invalid(other, f"{value} beams, but {name}={width}: send one of them")
    most = min(MAX_SEQUENCES, model.max_sequences)
    if not 1 <= width <= most:
        raise _invalid(name, f"{width} beams are not from 1 to {most}")
    return width


def _check_combined(request: BeamFields) -> None:
    """Raise ApiError 400 for fields that a search cannot have, or not with these values."""
    for name, plain in _PLAIN.items():
        value = getattr(request, name)
        if value is not None and value not in plain and not (name == "top_k" and value < 0):
            text = "beams are ranked by the model's own distribution, not sampled: leave it out"
            raise _invalid(name, text, "unsupported")
    for name, reason in _NOT_COMBINED.items():
        if getattr(request, name, None):
            raise _invalid(name, reason, "unsupported")
    if request.stop and request.skip_special_tokens is False:
        text = "special tokens are no part of the text in which a beam search finds them"
        raise _invalid("stop", text + ": leave skip_special_tokens out", "unsupported")
    penalty = request.length_penalty
    if penalty is not None and not abs(penalty) <= MAX_LENGTH_PENALTY:
        most = MAX_LENGTH_PENALTY
        raise _invalid("length_penalty", f"{penalty} is not from -{most} to {most}")


def _invalid(name: str, text: str, code: str = "invalid_value") -> ApiError:
    return bad_request(f"{name}: {text}.", name, code)
