# SPDX-License-Identifier: Apache-2.0
"""An engine client without an engine: it says what a script tells it, one token per step."""

from __future__ import annotations

import asyncio
import itertools
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rtp_llm.config.settings import Settings
from rtp_llm.config.tasks import TASKS
from rtp_llm.engine.client.restarts import Restarts
from rtp_llm.engine.deltas import merge_deltas
from rtp_llm.engine.messages import (
    AddRequest,
    ClientRequest,
    EngineDeadError,
    EngineLog,
    EngineReady,
    EngineStartError,
    EngineStats,
    FinishReason,
    OnStep,
    RequestError,
    SequenceDelta,
    SequenceError,
    TokenLogprob,
)
from rtp_llm.engine.profile_messages import Profiled, ProfilerError
from rtp_llm.request.add_prompts import AddPrompts
from rtp_llm.request.params import PoolingParams
from rtp_llm.request.sampling_params import SamplingParams
from rtp_llm.testing.engine.allowed_steps import allowed_steps

Script = Callable[[AddRequest, int], list[int]]
Pool = Callable[[list[int], PoolingParams], list[float]]
EOS = 4  # <|im_end|> of testing/model_folders.py
# In a script: instead of a token the sequence gets this error.
ERRORS: dict[int, SequenceError] = {
    -2: "model_produced_nan",
    -3: "no_allowed_tokens",
    -4: "too_few_sequences",
}


def ready_message(max_model_len: int = 256, vocab_size: int = 512) -> EngineReady:
    """A ready engine; metrics that no test reads are 1."""
    plain: dict[Any, Any] = {int: 1, float: 1.0, str: "fake", bool: False, tuple[int, ...]: (EOS,)}
    fields = [each for each in msgspec.structs.fields(EngineReady) if each.type in plain]
    values = {field.name: plain[field.type] for field in fields}
    values |= {"max_model_len": max_model_len, "vocab_size": vocab_size}
    values |= {"max_running": 16, "max_queued": 16, "tasks": TASKS, "vector_size": 4}
    return msgspec.convert(values, EngineReady)


class FakeStream:
    """The stream of one request; closing it is noted as an abort."""

    def __init__(self, engine: FakeEngine, request: ClientRequest) -> None:
        self.engine = engine
        self.request = request
        self.queue: asyncio.Queue[SequenceDelta | Exception | None] = asyncio.Queue()
        self.scripts = (
            []
            if isinstance(request, AddPrompts)
            else [engine.script(request, i) for i in range(request.params.n)]
        )
        self.done = [0] * request.params.n
        self.open = set(range(request.params.n))
        self.held: dict[int, SequenceDelta] = {}  # of a beam search

    def __aiter__(self) -> FakeStream:
        return self

    async def __anext__(self) -> SequenceDelta:
        try:
            item = await self.queue.get()
        except asyncio.CancelledError:
            await self.aclose()
            raise
        if item is None:
            raise StopAsyncIteration
        if isinstance(item, Exception):
            raise item
        return item

    async def aclose(self) -> None:
        if self.engine.streams.pop(self.request.request_id, None) is not None and self.open:
            self.engine.aborted.append((self.request.request_id, None))

    def step(self) -> tuple[int, int]:
        """One token for each open sequence; how many, and the same with what is new of a prompt."""
        stepped = len(self.open)
        prompt = 0 if any(self.done) else self.request.num_prompt_tokens
        for index in sorted(self.open):
            request = self.request
            delta = self._pooled(request) if isinstance(request, AddPrompts) else self._delta(index)
            self._give(delta)
        if not self.open:
            self.engine.streams.pop(self.request.request_id, None)
            self.queue.put_nowait(None)
        return stepped, stepped + max(0, prompt - self.engine.cached_tokens)

    def _give(self, delta: SequenceDelta) -> None:
        """Pass a delta on; of a beam search all at its end, and what is not among the best last."""
        search = self.request.beam_search if isinstance(self.request, AddRequest) else None
        if search is None:
            self.queue.put_nowait(delta)
            return
        held = self.held.get(delta.index)
        self.held[delta.index] = merge_deltas(held, delta) if held else delta
        if self.open:
            return
        for index, whole in sorted(self.held.items()):
            if index >= (search.num_return_sequences or len(self.held)):
                whole = SequenceDelta(
                    index=index, token_ids=[], finish_reason="error", error="too_few_sequences"
                )
            self.queue.put_nowait(whole)

    def _pooled(self, request: AddPrompts) -> SequenceDelta:
        """The end of a request that pools."""
        self.open.clear()
        vectors = [self.engine.pool(prompt, request.params) for prompt in request.prompts()]
        values = array("f", itertools.chain.from_iterable(vectors)).tobytes()
        cached = self.engine.cached_tokens
        return SequenceDelta(
            index=0, token_ids=[], finish_reason="stop", pooled=values, cached_tokens=cached
        )

    def _delta(self, index: int) -> SequenceDelta:
        params = self.request.params
        if not isinstance(params, SamplingParams):  # it ends with its prompt
            self.open.discard(index)
            scores = self._prompt_logprobs()
            return SequenceDelta(
                index=index, token_ids=[], finish_reason="stop", prompt_logprobs=scores
            )
        position = self.done[index]
        self.done[index] += 1
        script = self.scripts[index]
        token = script[position] if position < len(script) else EOS
        if token in ERRORS:
            self.open.discard(index)
            return SequenceDelta(
                index=index, token_ids=[], finish_reason="error", error=ERRORS[token]
            )
        stops = {*params.stop_token_ids} | (set() if params.ignore_eos else {EOS})
        finish: FinishReason | None = None
        if token in stops and position >= params.min_tokens:
            finish = "stop"
        elif params.max_tokens and position + 1 >= params.max_tokens:
            finish = "length"
        if finish:
            self.open.discard(index)
        first = position == 0 and index == 0
        return SequenceDelta(
            index=index,
            token_ids=[token],
            finish_reason=finish,
            stop_token_id=token if finish == "stop" else None,
            cached_tokens=self.engine.cached_tokens,
            draft_tokens=self.engine.draft_tokens,
            accepted_draft_tokens=self.engine.draft_tokens // 2,
            queue_seconds=self.engine.queue_seconds,
            logprobs=[self._logprob(token, params.logprobs, params.logprob_token_ids)]
            if params.logprobs is not None
            else None,
            prompt_logprobs=self._prompt_logprobs() if first else None,
        )

    def _prompt_logprobs(self) -> list[TokenLogprob | None] | None:
        wanted = self.request.params.prompt_logprobs
        if wanted is None:
            return None
        assert isinstance(self.request, AddRequest)
        rest = self.request.prompt_token_ids[1:]
        return [None, *(self._logprob(token, wanted) for token in rest)]

    def _logprob(self, token: int, wanted: int, ids: Sequence[int] = ()) -> TokenLogprob:
        top = [(token + i, -0.5 - i) for i in range(wanted)]
        if ids:
            top = [(each, -2.0) for each in ids]
        return TokenLogprob(token, -0.5, top, rank=1)


class FakeEngine:
    """Fits EngineInterface. `script(request, index)`: tokens of a sequence; EOS follows them."""

    def __init__(self, script: Script, *, step_seconds: float = 0.0) -> None:
        self.script = script
        self.step_seconds = step_seconds
        # A step begins only while fewer than these were taken; see AllowedSteps.
        self.allowed_steps: Callable[[], float] = allowed_steps
        self.steps = 0
        self.on_step: OnStep | None = None
        self.on_log: Callable[[EngineLog], None] | None = None
        self.ready: EngineReady | None = None
        self.latest_stats = EngineStats()
        self.failure: str | None = None
        self.restarting = False
        self.restarts = Restarts(0)
        self.start_error: str | None = None
        self.next_ready = ready_message()
        self.refuse: RequestError | None = None
        self.cached_tokens = 0
        self.draft_tokens = 0  # verified for each token, of which half are accepted
        self.queue_seconds = 0.0
        self.pool: Pool = pool_numbers
        self.requests: list[AddRequest] = []
        self.batches: list[AddPrompts] = []
        self.aborted: list[tuple[int, int | None]] = []
        self.streams: dict[int, FakeStream] = {}
        self.closed = self.profiling = False
        self._numbers = itertools.count(1)
        self._task: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return self.ready is not None and self.failure is None and not self.restarting

    @property
    def ranks_up(self) -> tuple[int, int]:
        return int(self.alive), 1

    def stop_restarting(self) -> None:
        self.restarts.stop()

    def spawn(self, settings: Settings) -> None:
        pass

    async def start(self, settings: Settings) -> EngineReady:
        if self.start_error:
            raise EngineStartError(self.start_error)
        self.ready = self.next_ready
        return self.ready

    def new_request_id(self) -> int:
        return next(self._numbers)

    def generate(self, request: ClientRequest) -> FakeStream:
        if self.failure is not None:
            raise EngineDeadError(self.failure)
        if self.refuse is not None:
            raise self.refuse
        if isinstance(request, AddPrompts):
            self.batches.append(request)
        else:
            self.requests.append(request)
        stream = self.streams[request.request_id] = FakeStream(self, request)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        return stream

    async def _run(self) -> None:
        while self.streams:
            await asyncio.sleep(self.step_seconds)
            # The last client may have left meanwhile.
            if self.streams and self.steps < self.allowed_steps():
                self.steps += 1
                stepped = [stream.step() for stream in list(self.streams.values())]
                batch, new_tokens = map(sum, zip(*stepped, strict=True))
                if self.on_step and batch:
                    self.on_step(batch, batch, new_tokens)

    def abort(self, request_id: int, index: int | None = None) -> None:
        self.aborted.append((request_id, index))
        stream = self.streams.get(request_id)
        if stream is not None:
            stream.open -= {index} if index is not None else set(stream.open)

    def die(self, reason: str = "killed by the test") -> None:
        self.failure = reason
        for stream in list(self.streams.values()):
            stream.queue.put_nowait(EngineDeadError(reason))
        self.streams.clear()

    async def profile(self, *, start: bool) -> list[Profiled]:
        if self.failure is not None:
            raise EngineDeadError(self.failure)
        if start == self.profiling:
            raise ProfilerError("the profiler runs already" if start else "it does not run")
        self.profiling = start
        return [Profiled(activities=("CPU",), file="" if start else "trace.json.gz")]

    async def close(self, timeout: float) -> None:
        self.closed = True
        if self.failure is None:
            self.die("closed")


def pool_numbers(prompt: list[int], params: PoolingParams) -> list[float]:
    """What is pooled of a prompt: numbers that depend on its tokens; an embedding has four."""
    count, first, last = len(prompt), prompt[0], prompt[-1]
    if params.task == "embed":
        return [float(count), float(first), float(last), 0.1][: params.dimensions]
    if params.task == "classify":
        return [0.25, 0.5, 0.25]
    return [1 / (1 + count)]


def say(tokenizer: object, *texts: str) -> Script:
    """A script: choice i says texts[i % len(texts)]."""
    encoded = [tokenizer.encode(text, add_special_tokens=False) for text in texts]  # type: ignore[attr-defined]
    return lambda request, index: encoded[index % len(encoded)]
