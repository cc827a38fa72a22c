# SPDX-License-Identifier: Apache-2.0
"""A cache of the grammars of requests, and of refusals."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from weakref import WeakValueDictionary

from rtp_llm.request.constraints import Grammar
from rtp_llm.server.offload.lane import OverrunError
from rtp_llm.server.turn.grammar_source import GrammarSource
from rtp_llm.server.turn.prepared import PreparedBody
from rtp_llm.server.types.errors import ApiError, bad_request

MAX_KNOWN, MAX_KNOWN_BYTES = 4096, 64 * 2**20
# Seconds to remember that a grammar takes too long, as the machine may only have been busy.
LATE_SECONDS = 600.0


@dataclass(frozen=True)
class _Known:
    """`text`: the grammar's, or else the reason of its refusal. `until`: a time.monotonic value."""

    text: str = ""
    refusal: tuple[str, str | None, str | None] | None = None
    until: float = float("inf")

    def result(self) -> Grammar:
        if self.refusal is not None:
            raise bad_request(*self.refusal)
        return Grammar(text=self.text)

    @property
    def size(self) -> int:
        return len(self.text) + (len(self.refusal[0]) if self.refusal else 0)


class Grammars:
    """Caches the most recently used grammars and refusals, by the digest of their source.

    A grammar that takes too much time or memory costs only one process. Belongs to an event loop.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._bytes = 0
        # A client waits only in its own queue, even if another client waits for the same grammar.
        self._locks: WeakValueDictionary[tuple[bytes, str], asyncio.Lock] = WeakValueDictionary()

    async def find(
        self, source: bytes, client: str, make: Callable[[], Awaitable[PreparedBody]]
    ) -> Grammar:
        """The grammar of `source`, an encoded GrammarSource; `make` builds it in a process.

        Raises ApiError: 400 if it cannot be enforced or takes too much, or 503.
        """
        digest = hashlib.sha256(source).digest()
        known = self._find(digest)
        if known is None:
            lock = self._locks.setdefault((digest, client), asyncio.Lock())
            async with lock:
                known = self._find(digest) or await self._make(source, make)
                self._keep(digest, known)
        return known.result()

    async def _make(self, source: bytes, make: Callable[[], Awaitable[PreparedBody]]) -> _Known:
        try:
            made = await make()
        except OverrunError as error:
            name = GrammarSource.decode(source).field
            text = f"{name}: compiling the grammar takes {error}; make it simpler."
            until = time.monotonic() + LATE_SECONDS if error.late else float("inf")
            return _Known(refusal=(text, name, "invalid_grammar"), until=until)
        except ApiError as error:
            if error.status != 400:
                raise
            return _Known(refusal=(error.message, error.param, error.code))
        return _Known(text=made.body.decode())

    def _find(self, digest: bytes) -> _Known | None:
        known = self._known.get(digest)
        if known is None:
            return None
        if time.monotonic() >= known.until:
            del self._known[digest]
            self._bytes -= known.size
            return None
        self._known.move_to_end(digest)
        return known

    def _keep(self, digest: bytes, known: _Known) -> None:
        before = self._known.pop(digest, None)
        self._bytes += known.size - (before.size if before else 0)
        self._known[digest] = known
        while len(self._known) > MAX_KNOWN or self._bytes > MAX_KNOWN_BYTES:
            _, oldest = self._known.popitem(last=False)
            self._bytes -= oldest.size
