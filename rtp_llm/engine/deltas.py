# SPDX-License-Identifier: Apache-2.0
"""From the columns of a step to one delta for each sequence; no torch, no numpy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, repeat

import msgspec

from rtp_llm.engine.messages import (
    FINISH_EOS,
    FINISH_LENGTH,
    FINISH_REASONS,
    FINISH_STOP_TOKEN,
    SEQUENCE_ERRORS,
    LogprobColumns,
    PoolColumns,
    PromptLogprobs,
    SequenceDelta,
    StepOutput,
    TokenLogprob,
)


def decode_step(output: StepOutput) -> Iterator[tuple[int, SequenceDelta]]:
    """(request_id, delta) of every row of the step that has tokens or an error, in row order.

    A row has neither when its sequence ended before the step did.
    """
    if not output.num_rows:
        return
    tokens = _int32(output.tokens)
    width = len(tokens) // output.num_rows
    logprobs = _decode_logprobs(output.logprobs, tokens, width) if output.logprobs else {}
    pooled = _decode_pooled(output.pooled) if output.pooled else {}
    rows = enumerate(_rows(output))
    for row, (request_id, index, count, finish, cached, queued, drafts) in rows:
        if not count and finish <= FINISH_LENGTH:
            continue
        ids = tokens[row * width : row * width + count]
        stopped = finish in (FINISH_EOS, FINISH_STOP_TOKEN)
        yield (
            request_id,
            SequenceDelta(
                index=index,
                token_ids=ids,
                finish_reason=FINISH_REASONS[finish],
                stop_token_id=ids[-1] if stopped else None,
                cached_tokens=cached,
                queue_seconds=queued,
                draft_tokens=drafts,
                accepted_draft_tokens=min(max(0, count - 1), drafts),
                logprobs=logprobs[row][:count] if count and row in logprobs else None,
                error=SEQUENCE_ERRORS.get(finish),
                pooled=pooled.get(request_id) if pooled else None,
            ),
        )


def _rows(output: StepOutput) -> Iterator[tuple[int, int, int, int, int, float, int]]:
    return zip(
        memoryview(output.request_ids).cast("q").tolist(),
        _int32(output.indexes),
        _int32(output.num_tokens),
        output.finish,
        _int32(output.cached_tokens),
        _float32(output.queue_seconds) or [0.0] * output.num_rows,
        _int32(output.num_drafts) or [0] * output.num_rows,
        strict=True,
    )


def _decode_logprobs(
    columns: LogprobColumns, tokens: list[int], width: int
) -> dict[int, list[TokenLogprob]]:
    places, wanted = _int32(columns.places), _int32(columns.wanted)
    entries = _token_logprobs(
        [tokens[place] for place in places],
        columns.chosen,
        columns.top_ids,
        columns.top_values,
        columns.width,
        wanted,
    )
    by_row: dict[int, list[TokenLogprob]] = {}
    for place, entry in zip(places, entries, strict=True):
        by_row.setdefault(place // width, []).append(entry)
    return by_row


def _decode_pooled(columns: PoolColumns) -> dict[int, bytes]:
    """The vectors of requests, by their ids: float32 numbers."""
    requests = memoryview(columns.request_ids).cast("q").tolist()
    ends = list(accumulate(4 * size for size in _int32(columns.sizes)))
    spans = zip(requests, [0, *ends], ends, strict=False)
    return {request: columns.values[start:end] for request, start, end in spans}


def decode_vector(pooled: bytes) -> list[float]:
    """The numbers of a delta's ``pooled``."""
    return _float32(pooled)


def decode_prompt_logprobs(message: PromptLogprobs, wanted: int) -> list[TokenLogprob]:
    """Entries of the prompt tokens from ``message.start`` on, ``wanted`` top values each.

    -1: all that the message has; no more than the vocabulary has are there.
    """
    ids = _int32(message.token_ids)
    return _token_logprobs(
        ids,
        message.chosen,
        message.top_ids,
        message.top_values,
        message.width,
        [wanted] * len(ids),
        _int32(message.ranks),
    )


def _token_logprobs(
    ids: list[int],
    chosen: bytes,
    top_ids: bytes,
    top_values: bytes,
    width: int,
    wanted: list[int],
    ranks: list[int] | None = None,
) -> list[TokenLogprob]:
    values = _float32(chosen)
    if ranks is None and not any(wanted):
        return [TokenLogprob(*each, []) for each in zip(ids, values, strict=True)]
    all_ids, all_values = _int32(top_ids), _float32(top_values)
    result = []
    ranked: Iterable[int | None] = ranks if ranks is not None else repeat(None, len(ids))
    columns = zip(ids, values, wanted, ranked, strict=True)
    for row, (token, value, count, rank) in enumerate(columns):
        start = row * width
        stop = start + (width if count < 0 else min(count, width))
        top = list(zip(all_ids[start:stop], all_values[start:stop], strict=True))
        result.append(TokenLogprob(token, value, top, rank))
    return result


def merge_deltas(first: SequenceDelta, second: SequenceDelta) -> SequenceDelta:
    """Merge two consecutive deltas of the same sequence into one.

    It takes over the lists of ``first``, because streams that lag merge at every step.
    """
    first.token_ids.extend(second.token_ids)
    if second.logprobs is not None and first.logprobs is not None:
        first.logprobs.extend(second.logprobs)
    elif second.logprobs is not None:
        first = msgspec.structs.replace(first, logprobs=second.logprobs)
    if second.draft_tokens:
        first = msgspec.structs.replace(
            first,
            draft_tokens=first.draft_tokens + second.draft_tokens,
            accepted_draft_tokens=first.accepted_draft_tokens + second.accepted_draft_tokens,
        )
    if second.finish_reason is None:
        return first
    return msgspec.structs.replace(
        first,
        finish_reason=second.finish_reason,
        stop_token_id=second.stop_token_id,
        error=second.error,
    )


def _int32(column: bytes) -> list[int]:
    numbers: list[int] = memoryview(column).cast("i").tolist()
    return numbers


def _float32(column: bytes) -> list[float]:
    return list(memoryview(column).cast("f"))
