# SPDX-License-Identifier: Apache-2.0
"""Compiles grammars on threads, and keeps those that were used last."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rtp_llm.worker.grammar.library import GrammarError

if TYPE_CHECKING:
    from rtp_llm.worker.grammar.library import GrammarLibrary, Matcher

_THREADS = 2
_CACHE_BYTES = 256 * 2**20
_DEADLINE = 5.0
# More than a request's schema of 256 KiB can become.
LONGEST_GRAMMAR = 2 * 2**20


@dataclass
class Compilation:
    """A grammar on its way; several requests may wait for it. ``began``: its thread has it."""

    future: Future[Matcher]
    began: list[float] = field(default_factory=list)

    @property
    def overdue(self) -> bool:
        """Whether it has exceeded the time limit, so that nobody waits for it any more."""
        return bool(self.began) and time.monotonic() - self.began[0] > _DEADLINE

    @property
    def ready(self) -> bool:
        """Whether `result` is available now."""
        return self.future.done() or self.overdue

    def result(self) -> Matcher:
        """The compiled grammar, to be copied. Raises GrammarError."""
        if not self.future.done():
            raise GrammarError(f"compiling the grammar takes longer than {_DEADLINE:g} s")
        return self.future.result()


class GrammarCompiler:
    """Belongs to one thread; ``changed`` is called from others when a grammar is compiled."""

    def __init__(
        self,
        library: GrammarLibrary,
        changed: Callable[[], None] = lambda: None,
        cache_bytes: int = _CACHE_BYTES,
    ) -> None:
        self._library, self._changed, self._cache_bytes = library, changed, cache_bytes
        self._threads = ThreadPoolExecutor(_THREADS, "grammar")
        self._known: OrderedDict[str, Compilation] = OrderedDict()  # the latest use last
        self._bytes = 0

    def compile(self, text: str) -> Compilation:
        """Start to compile a grammar, unless it is known. Raises GrammarError if it is too long."""
        found = self._known.get(text)
        if found is not None and not found.overdue:
            self._known.move_to_end(text)
            return found
        if len(text) > LONGEST_GRAMMAR:
            raise GrammarError(
                f"a grammar of {len(text)} characters is longer than {LONGEST_GRAMMAR}"
            )
        if found is None:
            self._bytes += self._library.size_of(text)
        began: list[float] = []
        compilation = Compilation(self._threads.submit(self._compile, text, began), began)
        compilation.future.add_done_callback(lambda _: self._changed())
        self._known[text] = compilation
        self._known.move_to_end(text)
        self._evict()
        return compilation

    def _compile(self, text: str, began: list[float]) -> Matcher:
        began.append(time.monotonic())
        return self._library.compile(text)

    def _evict(self) -> None:
        """Drop the least recently used; grammars in use live on with their sequences."""
        while self._bytes > self._cache_bytes and len(self._known) > 1:
            text, _ = self._known.popitem(last=False)
            self._bytes -= self._library.size_of(text)

    def close(self) -> None:
        """Accept no more grammars; only tests need this, a process just ends."""
        self._threads.shutdown(wait=False, cancel_futures=True)
