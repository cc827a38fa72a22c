# SPDX-License-Identifier: Apache-2.0
"""The server's phase (starting, ready, draining, ...) and its open answers."""

from __future__ import annotations

import asyncio
import time
from typing import Literal

from starlette.types import Scope

from rtp_llm.config.settings import Settings
from rtp_llm.engine.messages import EngineReady
from rtp_llm.server.http.server_metrics import Metrics
from rtp_llm.server.http.shutdown import Cuttable
from rtp_llm.server.keys.key_metrics import KeyCollector
from rtp_llm.server.keys.key_ring import ACCOUNT, KeyRing, usable
from rtp_llm.server.telemetry.setup import start_telemetry
from rtp_llm.server.turn.answer_syntax import choose_syntax
from rtp_llm.server.turn.body_kind import Preprocessing
from rtp_llm.server.turn.sampling import Limits
from rtp_llm.server.types.engine_interface import EngineInterface
from rtp_llm.server.types.errors import ApiError, unavailable
from rtp_llm.text.generation_defaults import GenerationDefaults
from rtp_llm.text.parsers.registry import Detected
from rtp_llm.text.pooling_config import PromptTexts, read_prompt_texts
from rtp_llm.text.tokenizer import Tokenizer

Phase = Literal[
    "starting", "ready", "draining", "engine_restarting", "engine_silent", "engine_dead"
]

_REASONS = {
    "starting": "The model is still loading",
    "draining": "The server is shutting down",
    "engine_restarting": "The engine has died and is being restarted",
    "engine_silent": "The engine has given no sign of life for a while",
    "engine_dead": "The engine has stopped",
}


class ServerState:
    """The state of the server. Belongs to the event loop of the HTTP server."""

    def __init__(
        self, settings: Settings, engine: EngineInterface, preprocessing: Preprocessing
    ) -> None:
        self.settings = settings
        self.engine = engine
        self.keys = KeyRing(settings)
        self.telemetry = start_telemetry(settings)
        self.metrics = Metrics(settings.model_name, settings.metrics_compat)
        self.metrics.registry.register(KeyCollector(self.keys))
        self.preprocessing = preprocessing
        self.created = int(time.time())
        self.answers: set[Cuttable] = set()
        self.answered = 0
        """Number of answers that ended by themselves, successfully or not."""
        self._tokenizer: Tokenizer | None = None
        self.prompts = PromptTexts()
        """Texts before inputs that are embedded, once they are read."""
        self.syntax_or_none: Detected | None = None
        """The formats of the model's tool calls and reasoning, once they are known."""
        self._limits: tuple[EngineReady, Limits] | None = None
        self._draining = False
        engine.on_step = self.metrics.observe_step
        self.metrics.watch_engine(engine, lambda: self.phase == "ready")

    def usable_names(self, scope: Scope) -> tuple[str, ...]:
        """The served names that the key of a request may use."""
        return usable(self.settings.model_names, scope.get(ACCOUNT))

    @property
    def phase(self) -> Phase:
        """The current phase; a dead engine takes precedence over draining."""
        engine = self.engine
        alive = engine.alive  # first, as it usually is, and finding out costs system calls
        if not alive and engine.failure is not None:
            return "engine_dead"
        if self._draining:
            return "draining"
        if not alive and engine.restarting:
            return "engine_restarting"
        if engine.ready and not alive:
            return "engine_silent"
        return "ready" if engine.ready and self._tokenizer else "starting"

    @property
    def reason(self) -> str:
        """Why the server is not ready, in words."""
        failure = self.engine.failure
        return _REASONS.get(self.phase, "") + (f": {failure}" if failure else "") + "."

    def open(self, tokenizer: Tokenizer) -> None:
        """Set the tokenizer; requests are admitted as soon as the engine is ready, too.

        Raises ModelFilesError if the model's sampling defaults are invalid for every request, or
        its prompts for embeddings.
        """
        if self.settings.use_generation_config:
            _ = tokenizer.defaults  # reads and checks the defaults
        self.prompts = read_prompt_texts(self.settings.model)
        self.syntax_or_none = choose_syntax(self.settings, tokenizer)
        self._tokenizer, self._limits = tokenizer, None

    def start_draining(self) -> None:
        """Stop admitting requests, and do not restart the engine if it dies from now on."""
        self._draining = True
        self.engine.stop_restarting()

    def check_admission(self) -> None:
        """Raise ApiError 503 unless requests are admitted."""
        if self.phase != "ready":
            raise self.not_ready()

    def not_ready(self) -> ApiError:
        """The 503 error for the current phase."""
        return unavailable(self.reason, self.phase)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; raises ApiError 503 while it is loading."""
        if self._tokenizer is None:
            raise unavailable(_REASONS["starting"] + ".", "starting")
        return self._tokenizer

    @property
    def syntax(self) -> Detected:
        """The formats of tool calls and reasoning; raises ApiError 503 until they are known."""
        if self.syntax_or_none is None:
            raise unavailable(_REASONS["starting"] + ".", "starting")
        return self.syntax_or_none

    @property
    def has_chat(self) -> bool:
        """Whether chats can be rendered; assumed to be true until the tokenizer is loaded."""
        return self._tokenizer is None or self._tokenizer.has_chat_template

    @property
    def template_variables(self) -> frozenset[str]:
        """Those that the chat template reads; none until the tokenizer is there."""
        return frozenset() if self._tokenizer is None else self._tokenizer.template_variables()

    @property
    def limits(self) -> Limits:
        """The engine's limits; raises ApiError 503 until the engine is ready."""
        ready = self.engine.ready
        if ready is None:
            raise unavailable(_REASONS["starting"] + ".", "starting")
        if self._limits is None or self._limits[0] is not ready:
            self._limits = ready, self._read_limits(ready)
        return self._limits[1]

    def _read_limits(self, ready: EngineReady) -> Limits:
        known = set(ready.eos_token_ids)
        # A tokenizer may know more tokens than the model can sample.
        all_ids = [token for token in self.tokenizer.eos_token_ids if token < ready.vocab_size]
        return Limits(
            max_model_len=ready.max_model_len,
            vocab_size=ready.vocab_size,
            eos_token_ids=frozenset(known.union(all_ids)),
            more_eos_token_ids=tuple(token for token in all_ids if token not in known),
        )

    @property
    def defaults(self) -> GenerationDefaults:
        """The model's sampling defaults, if they are enabled."""
        used = self.settings.use_generation_config
        return self.tokenizer.defaults if used else GenerationDefaults()

    def begin_answer(self, answer: Cuttable) -> None:
        """Register an answer that is being generated."""
        self.answers.add(answer)
        self.metrics.open_requests.set(len(self.answers))

    def end_answer(self, answer: Cuttable) -> None:
        """Remove an answer that has ended."""
        self.answers.discard(answer)
        self.answered += 1
        self.metrics.open_requests.set(len(self.answers))

    async def wait_until_idle(self, seconds: float) -> bool:
        """Wait for open answers to end; returns False if some are left after `seconds`."""
        deadline = time.monotonic() + seconds
        while self.answers and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        return not self.answers
