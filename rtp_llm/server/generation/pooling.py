# SPDX-License-Identifier: Apache-2.0
"""A request for vectors, scores or labels on its way through the engine."""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import ClassVar

from rtp_llm.engine.messages import (
    ERROR_MESSAGES,
    EngineDeadError,
    RequestError,
    SequenceDelta,
)
from rtp_llm.request.add_prompts import AddPrompts, int32_bytes
from rtp_llm.request.params import PoolingParams
from rtp_llm.server.generation.generation import Finish, Usage
from rtp_llm.server.http.request_metrics import SequenceTimes
from rtp_llm.server.http.server_metrics import Metrics
from rtp_llm.server.keys.key_ring import check_priority
from rtp_llm.server.keys.quota import Account
from rtp_llm.server.types.engine_interface import EngineInterface
from rtp_llm.server.types.errors import ApiError, from_engine, unavailable
from rtp_llm.server.types.jobs import PromptBatch


class Pooling:
    """The prompts of one HTTP request, which the engine takes and answers with one message each.

    Its attributes are those of a Generation, for the access log and telemetry.
    """

    choices_per_prompt: ClassVar[int] = 1

    def __init__(self, engine: EngineInterface, metrics: Metrics, batch: PromptBatch) -> None:
        self._engine, self._metrics, self._batch = engine, metrics, batch
        self._started = time.perf_counter()
        self.usage = Usage(prompt_tokens=len(batch.token_ids) // 4)
        self.account: Account | None = None
        self.failure: ApiError | None = None
        self.first_token_seconds: float | None = None
        self.finish_reasons: list[Finish] = []
        self.times: SequenceTimes | None = None

    @property
    def params(self) -> PoolingParams:
        """The parameters of all prompts."""
        return self._batch.params

    async def pooled(self) -> bytes:
        """What the engine pooled of the prompts, one after the other: float32 numbers.

        Cancelling this aborts all prompts. Raises ApiError if the engine refuses a prompt or dies,
        if the account has too few tokens left, or lacks permission.
        """
        account, tokens = self.account, self.usage.prompt_tokens
        if account is None:
            return await self._run()
        check_priority(self.params.priority, account)
        reserved = account.reserve(tokens, tokens)
        try:
            return await self._run()
        finally:
            account.settle(reserved, 0 if self.failure else tokens, 0)

    async def _run(self) -> bytes:
        ended = False
        self._metrics.prompt_tokens.inc(self.usage.prompt_tokens)
        self._metrics.requested.begin_pooling(len(self._batch.lengths))
        try:
            async with aclosing(self._engine.generate(self._request())) as stream:
                async for delta in stream:
                    if delta.finish_reason == "abort":
                        break
                    if delta.error is not None:
                        raise RequestError(delta.error, ERROR_MESSAGES[delta.error])
                    ended = True
                    return self._take(delta)
        except (RequestError, EngineDeadError) as error:
            self.failure = from_engine(error)
            raise self.failure from error
        finally:
            if not ended:
                self._metrics.requested.abort(1)
        raise unavailable("The request was ended by the server.", "aborted")

    def _take(self, delta: SequenceDelta) -> bytes:
        self.usage.cached_tokens = delta.cached_tokens
        self._metrics.cached_tokens.inc(delta.cached_tokens)
        self.first_token_seconds = seconds = time.perf_counter() - self._started
        self._metrics.requested.end_pooling(seconds, delta.queue_seconds)
        self.finish_reasons.append("stop")
        return delta.pooled or b""

    def _request(self) -> AddPrompts:
        key, batch = self.account.key if self.account else None, self._batch
        return AddPrompts(
            request_id=self._engine.new_request_id(),
            lengths=int32_bytes(batch.lengths),
            token_ids=batch.token_ids,
            second_texts=int32_bytes([*batch.second_texts]),
            params=batch.params,
            extra_key=(key.cache_scope if key else "") + batch.cache_salt,
            tenant=key.name if key else "",
            tenant_weight=key.weight if key else 1.0,
        )
