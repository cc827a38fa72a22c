"""Offline generation: the engine in this very process, from texts to texts."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from rtp_llm.config.roles import check_one_engine
from rtp_llm.config.settings import Settings, check_names
from rtp_llm.engine.deltas import decode_prompt_logprobs, decode_step, merge_deltas
from rtp_llm.engine.messages import (
    AddRequest,
    EngineDeadError,
    FinishReason,
    PromptLogprobs,
    RequestError,
    SequenceDelta,
    StepOutput,
    TokenLogprob,
)
from rtp_llm.prompts import Prompt, list_prompts, shorten, token_ids
from rtp_llm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from rtp_llm.engine.engine import Engine
    from rtp_llm.engine.rank_engines import RankEngines
    from rtp_llm.executor.logits_processor import LogitsProcessor
    from rtp_llm.text.sequence import SequenceText
    from rtp_llm.text.tokenizer import Tokenizer

Message = Mapping[str, Any]
_DRAW_SECONDS = 0.1


@dataclass
class CompletionOutput:
    """One generated sequence.

    ``token_ids`` holds all that were drawn, a final end-of-sequence token included, which ``text``
    does not show. ``stop_reason`` is the stop string or stop token that ended it.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    logprobs: list[TokenLogprob] | None = None

    @property
    def cumulative_logprob(self) -> float | None:
        """Sum of the tokens' log-probabilities, when they were asked for."""
        return None if self.logprobs is None else sum(entry.logprob for entry in self.logprobs)


@dataclass
class RequestOutput:
    """A prompt and its ``n`` sequences. ``prompt`` is None when the prompt came as token ids."""

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[TokenLogprob | None] | None = None
    cached_tokens: int = 0


class LLM:
    """A model in this process, or in `data_parallel_size` processes of its own.

    >>> with LLM("/models/qwen3") as llm:
    ...     print(llm.generate("The sky is", SamplingParams(max_tokens=8))[0].outputs[0].text)

    ``settings`` are the fields of rtp_llm.config.Settings (docs/settings.md): dtype, max_seq_len,
    kv_cache_mem_mb, ... An LLM belongs to one thread.

    Raises:
        SettingsError, UnsupportedModelError, ...: with the reason and what to change.
    """

    def __init__(self, model: str | Path, **settings: Any) -> None:
        from rtp_llm.text.model_files import check_folder
        from rtp_llm.text.tokenizer import Tokenizer

        check_names(settings)
        self.settings = Settings(model=str(model), **settings)
        check_one_engine(self.settings)
        check_folder(model, weights=self.settings.load_format != "dummy")
        self.tokenizer: Tokenizer = Tokenizer.from_folder(
            self.settings.model, self.settings.chat_template
        )
        self._processes: RankEngines | None = None
        self._engine: Engine | RankEngines | None
        if self.settings.data_parallel_size > 1:
            from rtp_llm.engine.rank_engines import RankEngines

            self._engine = self._processes = RankEngines(self.settings)
            self.ready = self._processes.ready
        else:
            from rtp_llm.engine.build import build_engine

            built = build_engine(self.settings)
            self._engine, self.ready = built.engine, built.ready
        self._next_id = 0

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the weights and the KV cache; the object cannot generate any more."""
        self._engine = None
        if self._processes is not None:
            self._processes.close()

    def prepare(self) -> None:
        """Record all graphs now; without this it is done by and by during the first steps."""
        while self._engine is not None and self._engine.has_idle_work:
            self._engine.work_idle()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        logits_processors: Sequence[LogitsProcessor] = (),
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete prompts (texts, or token ids in lists or arrays), all at once, in their order.

        One ``sampling_params`` serves all prompts, a list has one for each; None takes the defaults
        of the model's generation_config.json. ``use_tqdm`` shows a progress line on a terminal.

        Raises:
            ValueError: a prompt is empty or too long, or names a token that does not exist.
            TypeError: a prompt is neither text nor token ids.
            EngineDeadError: a step failed, now or before; make a new LLM.
        """
        listed = [(prompt, self._encode(prompt), True) for prompt in list_prompts(prompts)]
        return self._run(
            listed,
            self._params_for([len(ids) for _, ids, _ in listed], sampling_params),
            logits_processors,
            use_tqdm,
        )

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        logits_processors: Sequence[LogitsProcessor] = (),
        use_tqdm: bool = True,
        **template_variables: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or several; ``messages`` are ``{"role": ..., "content": ...}``.

        ``template_variables`` go to the chat template. Raises as ``generate``, and
        ChatTemplateError.
        """
        single = bool(messages) and isinstance(messages[0], Mapping)
        conversations: Sequence[Any] = [messages] if single else messages
        prompts = []
        for conversation in conversations:
            text = self.tokenizer.apply_chat_template(conversation, **template_variables)
            prompts.append((text, self.tokenizer.encode(text, add_special_tokens=False), False))
        params = self._params_for([len(ids) for _, ids, _ in prompts], sampling_params)
        return self._run(prompts, params, logits_processors, use_tqdm)

    # -- inside --------------------------------------------------------------------------------

    def _encode(self, prompt: Prompt) -> list[int]:
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else token_ids(prompt)

    def _params_for(
        self, lengths: Sequence[int], given: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[SamplingParams]:
        """The parameters of each prompt, whose lengths in tokens are given."""
        if given is None:
            default = self.default_sampling_params()
            return [self._fitted(default, length) for length in lengths]
        if isinstance(given, SamplingParams):
            return [given] * len(lengths)
        if len(given) != len(lengths):
            raise ValueError(f"{len(given)} sampling_params for {len(lengths)} prompts")
        return list(given)

    def _fitted(self, default: SamplingParams, prompt_tokens: int) -> SamplingParams:
        """The model's own max_new_tokens gives way to the context; nobody asked for so many."""
        room = max(1, self.ready.max_model_len - prompt_tokens)
        if default.max_tokens is None or default.max_tokens <= room:
            return default
        return msgspec.structs.replace(default, max_tokens=room)

    def default_sampling_params(self) -> SamplingParams:
        """What the model's generation_config.json asks for, over OpenAI's defaults."""
        used = self.settings.use_generation_config
        return self.tokenizer.defaults.params() if used else SamplingParams()

    def _with_all_eos(self, params: SamplingParams) -> SamplingParams:
        """The tokenizer may know an end-of-sequence token that the model's files do not name."""
        known, size = self.ready.eos_token_ids, self.ready.vocab_size
        more = [t for t in self.tokenizer.eos_token_ids if t not in known and t < size]
        if params.ignore_eos or not more:
            return params
        return msgspec.structs.replace(params, stop_token_ids=(*params.stop_token_ids, *more))

    def _run(
        self,
        prompts: Sequence[tuple[Prompt, list[int], bool]],
        params: list[SamplingParams],
        processors: Sequence[LogitsProcessor],
        show: bool,
    ) -> list[RequestOutput]:
        if self._engine is None:
            raise EngineDeadError("this LLM was closed")
        jobs = []
        for (prompt, ids, continues), asked in zip(prompts, params, strict=True):
            wanted = self._with_all_eos(asked)
            jobs.append(_Job(self.tokenizer, self._next_id, prompt, ids, wanted, continues))
            self._next_id += 1
        run = _Run(self._engine, jobs, processors, _ProgressLine(len(jobs), show))
        run.finish_all()
        return [job.output for job in jobs]


class _Job:
    """One prompt on its way; turns deltas into the output."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        request_id: int,
        prompt: Prompt,
        ids: list[int],
        params: SamplingParams,
        continues: bool,
    ) -> None:
        self.request = AddRequest(request_id=request_id, prompt_token_ids=ids, params=params)
        self.output = RequestOutput(
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=ids,
            outputs=[CompletionOutput(index) for index in range(params.n)],
        )
        if params.prompt_logprobs is not None:
            self.output.prompt_logprobs = [None] * len(ids)
        self.open = set(range(params.n))
        # Without stop strings the text can wait for the end, out of the way of the steps.
        self._waiting: dict[int, SequenceDelta] | None = None if params.stop else {}
        hidden = {*tokenizer.eos_token_ids, *params.stop_token_ids}
        context = ids if continues else ()
        self._texts = [_sequence_text(tokenizer, params, context, hidden) for _ in range(params.n)]

    def take(self, delta: SequenceDelta) -> bool:
        """Add a delta; True when a stop string ends the sequence, which the engine must be told."""
        if delta.index not in self.open:
            return False
        output = self.output.outputs[delta.index]
        if self._waiting is not None:
            waiting = self._waiting.get(delta.index)
            delta = merge_deltas(waiting, delta) if waiting else delta
            if delta.finish_reason is None:
                self._waiting[delta.index] = delta
                return False
        text = self._texts[delta.index]
        self.output.cached_tokens = delta.cached_tokens
        output.text += text.feed(delta.token_ids, delta.finish_reason is not None)
        taken = text.num_tokens - len(output.token_ids)
        output.token_ids += delta.token_ids[:taken]
        if delta.logprobs is not None:
            output.logprobs = (output.logprobs or []) + delta.logprobs[:taken]
        output.finish_reason = "stop" if text.stopped else delta.finish_reason
        output.stop_reason = text.stop_string if text.stopped else delta.stop_token_id
        if output.finish_reason is not None:
            self.open.discard(delta.index)
        return text.stopped and delta.finish_reason is None

    def take_prompt_logprobs(self, message: PromptLogprobs) -> None:
        """Put a part of the prompt's log-probabilities into its place."""
        entries = self.output.prompt_logprobs
        if entries is not None:
            part = decode_prompt_logprobs(message, self.request.params.prompt_logprobs or 0)
            entries[message.start : message.start + len(part)] = part


def _sequence_text(
    tokenizer: Tokenizer, params: SamplingParams, context: Sequence[int], hidden: set[int]
) -> SequenceText:
    from rtp_llm.text.sequence import SequenceText

    detokenizer = tokenizer.detokenizer(context, hidden=hidden)
    return SequenceText(detokenizer, params.stop, min_tokens=params.min_tokens)


class _Run:
    """Drives the engine until all jobs have ended; aborts what is left when something raises."""

    def __init__(
        self,
        engine: Engine | RankEngines,
        jobs: list[_Job],
        processors: Sequence[LogitsProcessor],
        line: _ProgressLine,
    ) -> None:
        self._engine = engine
        self._waiting = deque(jobs)
        self._open: dict[int, _Job] = {}
        self._processors = processors
        self._line = line

    def finish_all(self) -> None:
        """Run to the end."""
        try:
            while self._waiting or self._open:
                self._admit()
                for output in self._engine.step():
                    self._take(output)
        except BaseException:
            self._abort_all()
            raise
        finally:
            self._line.clear()

    def _admit(self) -> None:
        """Give the engine what it takes; the rest waits here."""
        while self._waiting:
            job = self._waiting[0]
            request_id = job.request.request_id
            # First, so that Ctrl-C inside add() aborts it too; the engine ignores unknown ids.
            self._open[request_id] = job
            try:
                self._engine.add(job.request, self._processors)
            except RequestError as error:
                del self._open[request_id]
                if error.kind == "queue_full" and self._open:
                    return
                prompt = job.output.prompt
                shown = job.output.prompt_token_ids if prompt is None else prompt
                raise ValueError(f"{shorten(shown)}: {error.message}") from error
            self._waiting.popleft()

    def _take(self, output: StepOutput | PromptLogprobs) -> None:
        if isinstance(output, PromptLogprobs):
            self._open[output.request_id].take_prompt_logprobs(output)
            return
        stopped = []
        for request_id, delta in decode_step(output):
            job = self._open.get(request_id)  # None: aborted, of which a process hears later
            if job and job.take(delta):
                stopped.append((request_id, delta.index))
            if job and not job.open:
                del self._open[request_id]
                self._line.prompts += 1
        if stopped:
            self._engine.abort(stopped)
        self._line.tokens += output.num_rows
        self._line.draw()

    def _abort_all(self) -> None:
        left = [(key, index) for key, job in self._open.items() for index in job.open]
        if left and self._engine.alive:
            self._engine.abort(left)


class _ProgressLine:
    """Prompts done and tokens per second, on a terminal only."""

    def __init__(self, total: int, show: bool, stream: TextIO | None = None) -> None:
        self.prompts = self.tokens = 0
        self._total = total
        self._stream = sys.stderr if stream is None else stream
        self._show = show and self._stream.isatty()
        self._began = self._drawn = time.monotonic()

    def draw(self) -> None:
        """Draw the line, unless that was done a moment ago."""
        now = time.monotonic()
        if self._show and now - self._drawn > _DRAW_SECONDS:
            self._drawn = now
            rate = self.tokens / (now - self._began)
            self._stream.write(
                f"\r\x1b[K{self.prompts}/{self._total} prompts, {self.tokens} tokens, {rate:.1f}/s"
            )
            self._stream.flush()

    def clear(self) -> None:
        """Remove the line."""
        if self._show:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
