# SPDX-License-Identifier: Apache-2.0
"""What a beam search asks of the engine's other parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from rtp_llm.engine.admission import is_constrained
from rtp_llm.engine.beams.beam_group import BeamGroup
from rtp_llm.engine.beams.beam_groups import PreparedSearch
from rtp_llm.engine.beams.stop_texts import StopTexts
from rtp_llm.engine.messages import AddRequest, RequestError
from rtp_llm.request.beam_search import BeamSearch
from rtp_llm.request.sampling_params import SamplingParams, check_token_fields
from rtp_llm.worker.heads.sampling_flags import MODIFYING, RANDOM, sampling_flags

if TYPE_CHECKING:
    from rtp_llm.engine.limits import EngineLimits
    from rtp_llm.worker.grammar.constraints import Constraints


def prepare_beams(
    request: AddRequest, limits: EngineLimits, constraints: Constraints
) -> tuple[AddRequest, PreparedSearch]:
    """The search of a request with ``beam_search``, and the request that is queued: its sequences
    report the most likely tokens, and the search ends them. ``constraints``: their library has the
    texts of tokens, in which stop strings are found.

    Raises:
        RequestError: invalid; says what a beam search cannot have.
    """
    params, search = request.sampling, request.beam_search
    assert search is not None
    if problem := _problem_of(request):
        raise RequestError("invalid", f"beam search: {problem}")
    try:
        check_token_fields(params, limits.vocab_size)
    except ValueError as error:
        raise RequestError("invalid", str(error)) from error
    room = max(1, limits.max_model_len - len(request.prompt_token_ids))
    prepared = _prepare(params, search, min(params.max_tokens or room, room), limits, constraints)
    prepared.overlaps = _overlaps(request, prepared, limits)
    changed = msgspec.structs.replace(
        params,
        logprobs=min(max(prepared.candidates_of_beam, prepared.top), limits.vocab_size),
        max_tokens=params.max_tokens or room,
        speculate=False,
    )
    return msgspec.structs.replace(request, params=changed), prepared


def _prepare(
    params: SamplingParams,
    search: BeamSearch,
    max_tokens: int,
    limits: EngineLimits,
    constraints: Constraints,
) -> PreparedSearch:
    eos = () if params.ignore_eos else limits.eos_token_ids
    stop_ids = np.array(sorted({*eos, *params.stop_token_ids}), np.int32)
    stop_texts, count = _stop_texts(params, constraints), search.num_beam_groups
    widths = search.variable_num_beams[:max_tokens] or (params.n // count,)
    top = min(params.logprobs or 0, limits.vocab_size)
    given = widths, max_tokens, stop_ids, search, stop_texts, top
    groups = [BeamGroup(*given) for _ in range(count)]
    k = groups[0].num_candidates
    if k > limits.vocab_size:
        raise RequestError(
            "invalid",
            f"beam search: n={params.n} beams need {k} candidates each, "
            f"the vocabulary has {limits.vocab_size} tokens",
        )
    best = search.num_return_sequences or count * widths[-1]
    if best > count * widths[-1]:
        raise RequestError(
            "invalid",
            f"beam search: {best} sequences are asked for, variable_num_beams ends with "
            f"{widths[-1]} beams",
        )
    return PreparedSearch(groups, best, k, search.diversity_penalty, stop_ids, top)


def _overlaps(request: AddRequest, prepared: PreparedSearch, limits: EngineLimits) -> bool:
    """Whether the best continuations that do not end with a stop id are always the next beams."""
    params, search = request.sampling, request.beam_search
    flags = sampling_flags(params, constrained=is_constrained(request))
    width = prepared.groups[0].rows.width
    return (
        len(prepared.groups) == 1
        and not flags & MODIFYING
        and not params.stop
        and search is not None
        and set(search.variable_num_beams) <= {width}
        and 1 < width <= limits.vocab_size - len(prepared.stop_ids)
    )


def _problem_of(request: AddRequest) -> str | None:
    params, search = request.sampling, request.beam_search
    assert search is not None
    if search.num_beam_groups > 1 and params.stop:
        return "stop strings cannot be combined with num_beam_groups: use stop_token_ids"
    if problem := search.problem(params.n):
        return problem
    if sampling_flags(params) & RANDOM:
        return "beams are not sampled, temperature must be 0"
    if params.logprob_token_ids:
        return "logprob_token_ids cannot be combined with it: leave them out"
    return None


def _stop_texts(params: SamplingParams, constraints: Constraints) -> StopTexts | None:
    if not params.stop:
        return None
    library = constraints.library
    if library is None:
        raise RequestError("invalid", f"beam search: stop: {constraints.why_no_library}")
    return StopTexts(list(params.stop), library.text_bytes, params.n, params.min_tokens)
