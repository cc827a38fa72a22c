"""Compiles a grammar with the served tokenizer before the engine is given it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from hashlib import sha256

import llguidance

from rtp_llm.constraints import Grammar
from rtp_llm.text.grammar.errors import GrammarError
from rtp_llm.text.grammar.vocabulary import Vocabulary, vocabulary_of

DEADLINE_SECONDS = 5.0
_VERDICTS = 4096  # of some 300 bytes at most
_THREADS = 2
# Fuel instead of time: what a thread does at most, however late its caller has given it up.
LIMITS = llguidance.LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    max_lexer_states=50_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)


def check_grammar(grammar: Grammar, tokenizer: Vocabulary) -> None:
    """Compile `grammar` for `tokenizer`; returns once it is known to be good.

    Blocks for up to DEADLINE_SECONDS: call it beside the event loop. Raises GrammarError with the
    library's reason, or when the deadline has passed.
    """
    _checker.check(grammar, tokenizer)


class _Checker:
    """Compiles on threads of its own, and keeps what it found."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="grammar")

    def check(self, grammar: Grammar, tokenizer: Vocabulary) -> None:
        key = sha256(b"%d %s" % (id(tokenizer), grammar.text.encode())).digest()
        error = self._known(key)
        if error is None:
            error = self._compile(grammar.text, tokenizer)
            self._keep(key, error)
        if error:
            raise GrammarError(error)

    def _known(self, key: bytes) -> str | None:
        with self._lock:
            if key in self._verdicts:
                self._verdicts.move_to_end(key)
            return self._verdicts.get(key)

    def _keep(self, key: bytes, error: str) -> None:
        with self._lock:
            self._verdicts[key] = error
            while len(self._verdicts) > _VERDICTS:
                self._verdicts.popitem(last=False)

    def _compile(self, text: str, tokenizer: Vocabulary) -> str:
        """The library's complaint; empty when there is none."""
        future: Future[str] = self._threads.submit(_complaint, text, tokenizer)
        try:
            return future.result(DEADLINE_SECONDS)
        except Late:
            future.cancel()
            raise GrammarError(
                f"compiling the grammar takes longer than {DEADLINE_SECONDS:g} s; make it simpler"
            ) from None


def _complaint(text: str, tokenizer: Vocabulary) -> str:
    matcher = llguidance.LLMatcher(vocabulary_of(tokenizer), text, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()
    return matcher.get_error()[:200] if matcher.is_error() else ""


_checker = _Checker()
