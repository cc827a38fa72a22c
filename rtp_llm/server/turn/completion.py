# SPDX-License-Identifier: Apache-2.0
"""POST /v1/completions: turns its body into one job per prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rtp_llm.server.turn.answer_options import (
    answer_options,
    completion_logprobs,
    prompt_logprobs,
)
from rtp_llm.server.turn.beam_options import with_beams
from rtp_llm.server.turn.body_kind import BodyKind
from rtp_llm.server.turn.constraint import constraint_of
from rtp_llm.server.turn.fill_in_middle import middle_prompt, suffix_tokens, with_ends
from rtp_llm.server.turn.grammar_source import encoded
from rtp_llm.server.turn.parse import Body, parse_request
from rtp_llm.server.turn.prepared import PreparedCompletion
from rtp_llm.server.turn.prompts import check_size, encode_prompt, make_job
from rtp_llm.server.turn.sampling import (
    bad_words,
    check_token_ids,
    completion_lengths,
    sampling_params,
)
from rtp_llm.server.turn.served_model import ServedModel
from rtp_llm.server.types.errors import bad_request
from rtp_llm.server.types.jobs import AnswerOptions, CompletionResponseOptions, Echo, Job
from rtp_llm.server.types.openai_bodies import CompletionRequest
from rtp_llm.text.fill_in_middle import FillInMiddle
from rtp_llm.text.sequence import SequenceText
from rtp_llm.text.tokenizer import Tokenizer


def prepare_completion(body: Body, model: ServedModel) -> PreparedCompletion:
    """Prepare the body of POST /v1/completions; raises ApiError."""
    request, ignored = parse_request(body, CompletionRequest, model)
    jobs, response_options = completion_of(request, model)
    return PreparedCompletion(jobs, bool(request.stream), response_options, ignored)


COMPLETION = BodyKind(
    "completion", prepare_completion, response_options=(CompletionResponseOptions,), renders=False
)


def completion_of(
    request: CompletionRequest, model: ServedModel
) -> tuple[list[Job], CompletionResponseOptions]:
    """One job per prompt, and the response options; raises ApiError."""
    drop = _drops_answer(request)
    request, beam_search = (request, None) if drop else with_beams(request, model)
    tokens = suffix_tokens(request, model)
    request = with_ends(request, tokens)
    prompt_top = prompt_logprobs(request, model)
    options = answer_options(request, model, completion_logprobs(request, model), prompt_top)
    grammar = constraint_of(request)
    prompts = _prompts(request, model, tokens)
    fields = {"grammar_source": b"" if drop else encoded(grammar), "beam_search": beam_search}
    jobs = completion_jobs(request, model, prompts, options, **fields)
    choices = jobs[0].num_choices
    tokenizer = model.tokenizer
    response_options = CompletionResponseOptions(
        model=model.name,
        choices_per_prompt=choices,
        num_choices=choices * len(jobs),
        options=options,
        echoes=[_echo(tokenizer, *prompt) for prompt in prompts] if request.echo else None,
        drop_answer=drop,
    )
    return jobs, response_options


def _prompts(
    request: CompletionRequest, model: ServedModel, tokens: FillInMiddle | None
) -> list[tuple[str | None, list[int]]]:
    """(text, or None if ids were given or the text was cut; ids) of each prompt."""
    given = request.prompt
    prompts: Sequence[Any] = [given] if isinstance(given, str) else given
    kinds = set(map(type, prompts))
    if kinds == {int}:
        prompts, kinds = [prompts], {list}
    if len(kinds) != 1 or not kinds <= {str, list}:
        raise bad_request(
            "prompt: must be a text, a list of texts, a list of token ids or a list of lists "
            "of token ids, and not empty.",
            param="prompt",
            code="invalid_type",
        )
    check_size(len(prompts), request, model)
    return [_prompt(item, request, model, tokens) for item in prompts]


def _prompt(
    item: str | list[int],
    request: CompletionRequest,
    model: ServedModel,
    tokens: FillInMiddle | None,
) -> tuple[str | None, list[int]]:
    lengths = completion_lengths(request, model.defaults)
    if isinstance(item, list):
        check_token_ids("prompt", item, model.limits)
    if tokens is not None:
        return None, middle_prompt(item, request, tokens, model, lengths)
    text = None
    if isinstance(item, list):
        ids = lengths.truncate(item, request, model.limits)
    else:
        add = request.add_special_tokens is not False
        ids, whole = encode_prompt(item, request, model, lengths, add)
        text = item if whole else None
    if not ids:
        raise bad_request("prompt: must not be empty.", param="prompt", code="invalid_value")
    return text, ids


def completion_jobs(
    request: CompletionRequest,
    model: ServedModel,
    prompts: list[tuple[str | None, list[int]]],
    options: AnswerOptions,
    **fields: Any,
) -> list[Job]:
    """One job per prompt, given as (text or None, ids); raises ApiError. `fields`: additional
    fields of each Job."""
    drop = _drops_answer(request)
    lengths = completion_lengths(request, model.defaults)
    scored = [options.prompt_logprobs, options.top_logprobs if request.echo else None]
    words = bad_words(request, model.tokenizer)
    jobs: list[Job] = []
    for _, ids in prompts:
        if drop:
            # Only the prompt's log-probabilities are requested; the engine still samples one token.
            lengths.resolve(len(ids) + 1, model.limits)
        params = sampling_params(
            request,
            model.defaults,
            model.limits,
            max_tokens=1 if drop else lengths.resolve(len(ids), model.limits),
            logprobs=None if drop else options.top_logprobs,
            prompt_logprobs=max((each for each in scored if each is not None), default=None),
            bad_words=words,
        )
        jobs.append(
            make_job(
                request,
                model.limits,
                ids,
                params,
                first_choice=sum(job.num_choices for job in jobs),
                continues_prompt=True,
                prompt_only=drop,
                **fields,
            )
        )
    return jobs


def _drops_answer(request: CompletionRequest) -> bool:
    """Whether only the prompt was requested, so that the answer is dropped."""
    return request.max_tokens == 0 and bool(request.echo)


def _echo(tokenizer: Tokenizer, text: str | None, ids: list[int]) -> Echo:
    sequence = SequenceText(tokenizer.detokenizer(), track_offsets=True)
    decoded = sequence.feed(ids, finished=True)
    return Echo(decoded if text is None else text, ids, sequence.offsets or [])
