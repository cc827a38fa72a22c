# SPDX-License-Identifier: Apache-2.0
"""Requests whose grammar is being compiled: the scheduler does not know them yet."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rtp_llm.engine.messages import INDEX_BITS, AddRequest, RequestError
from rtp_llm.engine.waker import Waker
from rtp_llm.worker.grammar.compiler import GrammarCompiler
from rtp_llm.worker.grammar.library import GrammarError

if TYPE_CHECKING:
    from rtp_llm.request.constraints import Grammar
    from rtp_llm.worker.grammar.compiler import Compilation
    from rtp_llm.worker.grammar.library import GrammarLibrary, Matcher
    from rtp_llm.worker.heads.logits_processor import LogitsProcessor

_TIMEOUT_MS = 100  # within which compilation deadlines are noticed
_LOOK_SECONDS = 0.002


@dataclass
class Uncompiled:
    """A request as it was added. ``aborted``: its aborted sequences, by their scheduler ids."""

    request: AddRequest
    processors: Sequence[LogitsProcessor]
    seeds: Sequence[int]
    compilation: Compilation
    aborted: set[int] = field(default_factory=set)


class UncompiledRequests:
    """Waiting requests hold no blocks, no slots and no place in the queue. Belongs to the engine's
    thread."""

    def __init__(self, library: GrammarLibrary, most: int) -> None:
        """At most ``most`` sequences may wait here."""
        self.waker = Waker()
        self._changed = threading.Event()
        self._compiler = GrammarCompiler(library, self._wake)
        self._most = most
        self._waiting: dict[int, Uncompiled] = {}  # by request

    def _wake(self) -> None:
        self._changed.set()
        self.waker.wake()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def timeout_ms(self) -> int | None:
        """As Serving's."""
        return _TIMEOUT_MS if self._waiting else None

    def compile(self, grammar: Grammar) -> Compilation:
        """Start to compile a grammar, unless it is known. Raises RequestError."""
        try:
            return self._compiler.compile(grammar.text)
        except GrammarError as error:
            raise RequestError("invalid", f"grammar: {error}") from error

    @staticmethod
    def result(compilation: Compilation) -> Matcher:
        """The result of a compilation that is ready. Raises RequestError."""
        try:
            return compilation.result()
        except GrammarError as error:
            raise RequestError("invalid", f"grammar: {error}") from error

    def check_room(self, request: AddRequest) -> None:
        """Raise RequestError, queue_full, if no more may wait here."""
        sequences = sum(each.request.params.n for each in self._waiting.values())
        if sequences + request.params.n > self._most:
            raise RequestError(
                "queue_full", f"the grammars of {sequences} sequences are being compiled"
            )

    def add(self, new: Uncompiled) -> None:
        """Add a request, once `check_room` has passed."""
        self._waiting[new.request.request_id] = new

    def take_ready(self) -> list[Uncompiled]:
        """Return requests that can be queued or have failed, in the order of arrival."""
        self.waker.clear()
        self._changed.clear()
        ready = [each for each in self._waiting.values() if each.compilation.ready]
        for each in ready:
            del self._waiting[each.request.request_id]
        return ready

    def abort(self, ids: Iterable[int]) -> None:
        """Abort sequences; those of other requests are ignored."""
        for sequence in ids:
            waiting = self._waiting.get(sequence >> INDEX_BITS)
            if waiting is None:
                continue
            waiting.aborted.add(sequence)
            if len(waiting.aborted) == waiting.request.params.n:
                del self._waiting[sequence >> INDEX_BITS]

    def wait(self) -> None:
        """Wait briefly for a grammar to be compiled; for times when there is nothing else to do."""
        self._changed.wait(_LOOK_SECONDS)
