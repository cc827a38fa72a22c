# SPDX-License-Identifier: Apache-2.0
"""Compiles a grammar with the served tokenizer before it is passed to the engine."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from hashlib import sha256
from random import Random
from weakref import WeakKeyDictionary

import llguidance

from rtp_llm.request.constraints import Grammar
from rtp_llm.text.grammar.errors import GrammarError
from rtp_llm.text.grammar.lark import MAX_BYTES, check_text
from rtp_llm.text.grammar.vocabulary import Vocabulary, vocabulary_of

DEADLINE_SECONDS = 5.0
_VERDICTS = 4096  # of some 300 bytes at most, for a tokenizer
_THREADS = 2
_REHEARSED_TOKENS = 32
_MAX_TEXT = 16 * MAX_BYTES  # limit on the text generated from at most MAX_BYTES of a request
# Positions in the generated text mean nothing to the author of the schema.
_OF_SCHEMA = re.compile(r"\Aat \d+\(\d+\): failed to compile JSON schema: ")
_KEYWORDS = (("patternProperty", "patternProperties"), ("Regex is empty", "pattern"))
# Fuel rather than time bounds the work of a thread, even after its caller has given up on it.
LIMITS = llguidance.LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    max_lexer_states=50_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)


def check_grammar(grammar: Grammar, tokenizer: Vocabulary) -> None:
    """Compile `grammar` for `tokenizer`; returns once it is known to be valid.

    Blocks for up to DEADLINE_SECONDS: call it outside the event loop. Raises GrammarError with the
    library's reason, or when the deadline has passed.
    """
    _checker.check(grammar, tokenizer)


class _Checker:
    """Compiles grammars on its own threads and caches the verdicts for each tokenizer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._verdicts: WeakKeyDictionary[Vocabulary, OrderedDict[bytes, str]] = WeakKeyDictionary()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="grammar")

    def check(self, grammar: Grammar, tokenizer: Vocabulary) -> None:
        check_text(grammar.text, "the grammar", _MAX_TEXT)
        key = sha256(grammar.text.encode()).digest()
        error = self._known(tokenizer, key)
        if error is None:
            error = self._compile(grammar.text, tokenizer)
            self._keep(tokenizer, key, error)
        if error:
            raise GrammarError(error, _keyword_of(error))

    def _known(self, tokenizer: Vocabulary, key: bytes) -> str | None:
        with self._lock:
            verdicts = self._verdicts.get(tokenizer, OrderedDict())
            if key in verdicts:
                verdicts.move_to_end(key)
            return verdicts.get(key)

    def _keep(self, tokenizer: Vocabulary, key: bytes, error: str) -> None:
        with self._lock:
            verdicts = self._verdicts.setdefault(tokenizer, OrderedDict())
            verdicts[key] = error
            while len(verdicts) > _VERDICTS:
                verdicts.popitem(last=False)

    def _compile(self, text: str, tokenizer: Vocabulary) -> str:
        """Return the library's error message, or an empty string if there is none."""
        future: Future[str] = self._threads.submit(_complaint, text, tokenizer)
        try:
            return future.result(DEADLINE_SECONDS)
        except Late:
            future.cancel()
            raise GrammarError(
                f"compiling the grammar takes longer than {DEADLINE_SECONDS:g} s; make it simpler"
            ) from None


def rehearse(grammar: Grammar, tokenizer: Vocabulary) -> None:
    """Compile `grammar` in this thread and advance it by some tokens, as an engine does.

    Meant for a process that may run long or crash: a grammar that passes here is safe for an
    engine. Raises GrammarError with the library's reason.
    """
    check_text(grammar.text, "the grammar", _MAX_TEXT)
    matcher, error = _compiled(grammar.text, tokenizer)
    if error:
        raise GrammarError(error, _keyword_of(error))
    chance = Random(0)
    for _ in range(_REHEARSED_TOKENS):
        mask = matcher.compute_bitmask()
        first = chance.randrange(len(mask))
        mask = mask[first:] + mask[:first]
        skipped = len(mask) - len(mask.lstrip(b"\0"))
        if skipped == len(mask):
            return
        byte = mask[skipped]
        token = 8 * ((first + skipped) % len(mask)) + (byte & -byte).bit_length() - 1
        if not matcher.consume_token(token) or matcher.is_stopped():
            return


def _complaint(text: str, tokenizer: Vocabulary) -> str:
    _, error = _compiled(text, tokenizer)
    return error


def _compiled(text: str, tokenizer: Vocabulary) -> tuple[llguidance.LLMatcher, str]:
    """A matcher at its start, and what is wrong with the grammar, if anything."""
    matcher = llguidance.LLMatcher(vocabulary_of(tokenizer), text, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()
    if not matcher.is_error():
        return matcher, ""
    said = _OF_SCHEMA.sub("", matcher.get_error()).splitlines()
    return matcher, said[0][:300] if said and said[0] else "the grammar does not compile"


def _keyword_of(error: str) -> str | None:
    return next((keyword for words, keyword in _KEYWORDS if words in error), None)


_checker = _Checker()
