# SPDX-License-Identifier: Apache-2.0
"""Offline generation, from text to text, with the engine in this process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rtp_llm.config.nodes import check_nodes
from rtp_llm.config.roles import check_one_engine
from rtp_llm.config.settings import Settings, current_names
from rtp_llm.engine.messages import EngineDeadError
from rtp_llm.interrupts import brief_when_interrupted
from rtp_llm.offline.beam_search import BeamSearchOutput, beam_search_output, sampling_of
from rtp_llm.offline.outputs import RequestOutput
from rtp_llm.offline.pooling import PoolingMethods, refuse_adapter
from rtp_llm.offline.prompt_job import EncodedPrompt, PromptJob
from rtp_llm.offline.prompt_run import Job, PromptRun
from rtp_llm.offline.prompts import PlainPrompt, Prompt, list_prompts
from rtp_llm.request.beam_search import BeamSearchParams
from rtp_llm.request.constraints import Grammar
from rtp_llm.request.sampling_params import DEFAULT_MAX_TOKENS, SamplingParams, truncate_prompt
from rtp_llm.terminal.progress_line import ProgressLine
from rtp_llm.vllm_arguments import hints_as_arguments, settings_of

if TYPE_CHECKING:
    from rtp_llm.engine.engine import Engine
    from rtp_llm.engine.replicas.rank_engines import RankEngines
    from rtp_llm.text.tokenizer import Tokenizer
    from rtp_llm.worker.heads.logits_processor import LogitsProcessor

Message = Mapping[str, Any]


class LLM(PoolingMethods):
    """A model in this process or, with several ranks, in processes of its own.

    >>> with LLM("/models/qwen3") as llm:
    ...     print(llm.generate("The sky is", SamplingParams(max_tokens=8))[0].outputs[0].text)

    ``settings`` are the fields of rtp_llm.config.Settings (docs/settings.md): dtype, max_seq_len,
    kv_cache_mem_mb, ... `speculative_config` may be a dictionary, too. vLLM's names are accepted
    for settings with a counterpart (docs/from_vllm.md). An LLM belongs to one thread.

    Raises:
        SettingsError, UnsupportedModelError, ...: with the reason and what to change.
    """

    def __init__(self, model: str | Path, **settings: Any) -> None:
        from rtp_llm.text.model_files import check_folder
        from rtp_llm.text.tokenizer import Tokenizer

        with hints_as_arguments(), brief_when_interrupted(f"loading {model}"):
            self.settings = _settings(str(model), settings)
            check_folder(model, weights=self.settings.load_format != "dummy")
            self.tokenizer: Tokenizer = Tokenizer.from_folder(
                self.settings.model, self.settings.chat_template
            )
            self._start()
        self._next_id = 0

    def _start(self) -> None:
        self._processes: RankEngines | None = None
        self._engine: Engine | RankEngines | None
        if self.settings.num_ranks > 1:
            from rtp_llm.engine.replicas.rank_engines import RankEngines

            self._engine = self._processes = RankEngines(self.settings)
            self.ready = self._processes.ready
        else:
            from rtp_llm.engine.start.build import build_engine

            built = build_engine(self.settings)
            self._engine, self.ready = built.engine, built.ready

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
        """Capture all graphs now; without this they are captured during the first steps."""
        while self._engine is not None and self._engine.has_idle_work:
            self._engine.work_idle()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        logits_processors: Sequence[LogitsProcessor] = (),
        use_tqdm: bool = True,
        lora_request: None = None,
    ) -> list[RequestOutput]:
        """Complete prompts, all at once; the outputs are in the order of the prompts.

        A prompt is a string, token ids in a list or array, ``{"prompt": text}`` or
        ``{"prompt_token_ids": ids}``. One ``sampling_params`` serves all prompts, a list has one
        for each; None takes the defaults of the model's generation_config.json. Without
        ``max_tokens`` an output has at most 16 tokens. ``use_tqdm`` shows a progress line on a
        terminal. ``lora_request`` must be None.

        Raises:
            ValueError: a prompt is empty or too long, or names a token that does not exist.
            TypeError: a prompt is neither text nor token ids.
            EngineDeadError: a step failed, now or before; make a new LLM.
        """
        refuse_adapter(lora_request)
        listed = [
            EncodedPrompt(prompt, prompt.token_ids or self.tokenizer.encode(prompt.text or ""))
            for prompt in list_prompts(prompts)
        ]
        requests = self._with_params(listed, sampling_params, DEFAULT_MAX_TOKENS)
        return self._run(requests, logits_processors, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        logits_processors: Sequence[LogitsProcessor] = (),
        tools: Sequence[Mapping[str, Any]] | None = None,
        use_tqdm: bool = True,
        lora_request: None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **template_variables: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or several; ``messages`` are ``{"role": ..., "content": ...}``.

        ``tools``: functions in OpenAI's form, which the chat template shows to the model; calls
        come in the output's text. ``template_variables`` go to the chat template, but for
        ``add_generation_prompt``, ``continue_final_message`` and ``chat_template``, which mean what
        they do in vLLM; ``chat_template_kwargs`` are more of them. ``lora_request`` must be None.
        Without ``max_tokens`` an answer may fill the context.

        Raises as ``generate``, and ChatTemplateError.
        """
        from rtp_llm.text.thinking import thinking_in

        refuse_adapter(lora_request)
        template_variables |= chat_template_kwargs or {}
        single = bool(messages) and isinstance(messages[0], Mapping)
        conversations: Sequence[Any] = [messages] if single else messages
        continues = bool(template_variables.get("continue_final_message"))
        prompts = []
        for conversation in conversations:
            text = self.tokenizer.apply_chat_template(
                conversation, tools=tools, **template_variables
            )
            ids = self.tokenizer.encode(text, add_special_tokens=False)
            thinking = thinking_in(text, self.tokenizer)
            prompts.append(EncodedPrompt(PlainPrompt(text, None), ids, continues, thinking))
        requests = self._with_params(prompts, sampling_params, None)
        return self._run(requests, logits_processors, use_tqdm)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        *,
        use_tqdm: bool = True,
        lora_request: None = None,
    ) -> list[BeamSearchOutput]:
        """The sequences of highest probability that a beam search finds for each prompt (see
        ``generate``), in the order of the prompts.

        Raises as ``generate``.
        """
        refuse_adapter(lora_request)
        sampling, search = sampling_of(params)
        listed = [
            EncodedPrompt(prompt, prompt.token_ids or self.tokenizer.encode(prompt.text or ""))
            for prompt in list_prompts(prompts)
        ]
        asked = self._with_params(listed, sampling, DEFAULT_MAX_TOKENS)
        beams = [
            (msgspec.structs.replace(prompt, beam_search=search), each) for prompt, each in asked
        ]
        found = self._run(beams, (), use_tqdm)
        return [beam_search_output(each, params, self.tokenizer) for each in found]

    # -- inside --------------------------------------------------------------------------------

    def _with_params(
        self,
        prompts: Sequence[EncodedPrompt],
        given: SamplingParams | Sequence[SamplingParams] | None,
        default_max_tokens: int | None,
    ) -> list[tuple[EncodedPrompt, SamplingParams]]:
        """Each prompt, truncated as requested, with its parameters."""
        if given is None or isinstance(given, SamplingParams):
            listed = [given or self.get_default_sampling_params()] * len(prompts)
        else:
            listed = list(given)
        if len(listed) != len(prompts):
            raise ValueError(f"{len(listed)} sampling_params for {len(prompts)} prompts")
        # Prompts often share one object: it is checked once, and its bad words tokenised once.
        different = {id(each): each for each in listed}
        completed = {key: self._complete(each) for key, each in different.items()}
        grammars = {key: self._grammar(each) for key, each in different.items()}
        limited: dict[tuple[int, int | None], SamplingParams] = {}
        fitted = []
        for prompt, each in zip(prompts, listed, strict=True):
            params, grammar = completed[id(each)], grammars[id(each)]
            ids, wanted = self._fitted(prompt, params, default_max_tokens, given is None)
            if ids is not prompt.token_ids or grammar is not None:
                prompt = msgspec.structs.replace(prompt, token_ids=ids, grammar=grammar)
            if wanted != params.max_tokens and (id(each), wanted) not in limited:
                limited[id(each), wanted] = msgspec.structs.replace(params, max_tokens=wanted)
            fitted.append((prompt, limited.get((id(each), wanted), params)))
        return fitted

    def _fitted(
        self, prompt: EncodedPrompt, params: SamplingParams, default: int | None, is_own: bool
    ) -> tuple[list[int], int | None]:
        """The ids that are kept of a prompt, and its max_tokens, limited to the context where it
        was not requested.

        ``default`` is used if the parameters have none; ``is_own``: they are the model's own.
        """
        limit, unset = self.ready.max_model_len, params.max_tokens is msgspec.UNSET
        wanted = params.max_tokens or (default if unset else None)
        ids = truncate_prompt(prompt.token_ids, params.truncate_prompt_tokens, limit, wanted or 1)
        if wanted and (unset or is_own):
            wanted = min(wanted, max(1, limit - len(ids)))
        return ids, wanted

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The settings of the model's generation_config.json, on top of OpenAI's defaults."""
        used = self.settings.use_generation_config
        return self.tokenizer.defaults.params() if used else SamplingParams()

    def _complete(self, params: SamplingParams) -> SamplingParams:
        """Add what the tokenizer knows: bad words as token ids, and its end-of-sequence tokens.

        It may have one that the model's files do not name.
        """
        from rtp_llm.text.bad_words import bad_word_ids

        changed: dict[str, Any] = {}
        if params.bad_words:
            words = (*params.bad_words_token_ids, *bad_word_ids(self.tokenizer, params.bad_words))
            changed["bad_words_token_ids"] = words
        known, size = self.ready.eos_token_ids, self.ready.vocab_size
        more = [t for t in self.tokenizer.eos_token_ids if t not in known and t < size]
        if more and not params.ignore_eos:
            changed["stop_token_ids"] = (*params.stop_token_ids, *more)
        if params.structured_outputs is not None:
            changed["structured_outputs"] = None  # the engine receives its grammar instead
        return msgspec.structs.replace(params, **changed) if changed else params

    def _grammar(self, params: SamplingParams) -> Grammar | None:
        """The grammar of a request. Raises GrammarError, a ValueError."""
        if params.structured_outputs is None:
            return None
        from rtp_llm.text.grammar.wanted import checked_grammar

        return checked_grammar(params.structured_outputs, self.tokenizer)

    def _run(
        self,
        prompts: Sequence[tuple[EncodedPrompt, SamplingParams]],
        processors: Sequence[LogitsProcessor],
        show: bool,
    ) -> list[RequestOutput]:
        jobs = [PromptJob(self.tokenizer, self._new_id(), *prompt) for prompt in prompts]
        self._run_jobs(jobs, processors, show)
        return [job.output for job in jobs]

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def _run_jobs(
        self, jobs: Sequence[Job], processors: Sequence[LogitsProcessor], show: bool
    ) -> None:
        if self._engine is None:
            raise EngineDeadError("this LLM was closed")
        PromptRun(self._engine, jobs, processors, ProgressLine(len(jobs), show)).finish_all()


def _settings(model: str, given: Mapping[str, Any]) -> Settings:
    """The settings for the arguments of LLM; raises SettingsError."""
    named = settings_of(given)
    if named.get("tokenizer") == model:
        del named["tokenizer"]
    named = current_names(named)
    if isinstance(named.get("speculative_config"), dict):
        named["speculative_config"] = json.dumps(named["speculative_config"])
    settings = Settings(model=model, **named)
    check_one_engine(settings)
    check_nodes(settings)
    return settings
