# SPDX-License-Identifier: Apache-2.0
"""Grammars by llguidance: derivatives of regular expressions below an Earley parser."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import cast

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

from rtp_llm.worker.grammar.library import GrammarError, MaskTask, Matcher

# One lexer state takes 1 to 2 KB; the library's own limits are five times as high.
_LIMITS = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)
# Measured with objects of 20 properties and 131,072 tokens: 120 KiB at 1.2 KB of text.
_COMPILED_BYTES, _BYTES_PER_CHARACTER = 96 * 2**10, 24
# Fewer rows are filled sooner by the engine's own thread.
_ROWS_FOR_THREADS = 16
_MAX_THREADS = 8
_LONGEST_ERROR = 400


class LlguidanceLibrary:
    """The masks of one tokenizer."""

    def __init__(self, tokenizer: LLTokenizer) -> None:
        """``tokenizer`` must have as many tokens as the logits have columns."""
        self._tokenizer = tokenizer
        self._mask_bytes = 4 * -(-tokenizer.vocab_size // 32)
        # The cores left over by the engine's own thread and its device.
        threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)) // 2)
        self._executor = LLExecutor(num_threads=max(1, threads))
        self._threads = threads

    def compile(self, text: str) -> LlguidanceMatcher:
        """See GrammarLibrary."""
        matcher = LlguidanceMatcher(LLMatcher(self._tokenizer, text, log_level=0, limits=_LIMITS))
        if matcher.error is None:
            self.fill([MaskTask(matcher, 0)], np.empty((1, self._mask_bytes // 4), np.int32))
        if (error := matcher.error) is not None:
            raise GrammarError(error)
        return matcher

    def fill(self, tasks: Sequence[MaskTask], masks: NDArray[np.int32]) -> None:
        """See GrammarLibrary."""
        size, start = self._mask_bytes, masks.ctypes.data
        assert masks.shape[1] * 4 == size
        assert masks.flags.c_contiguous
        alone, drafted = [], []
        for matcher, row, drafts in tasks:
            native = cast("LlguidanceMatcher", matcher).native
            if drafts:
                drafted.append((native, row, list(drafts)))
            else:
                alone.append((native, row))
        if self._threads > 1 and len(alone) >= _ROWS_FOR_THREADS:
            self._executor.unsafe_compute_mask_ptr(alone, start, size, len(masks))
        else:
            for native, row in alone:
                native.unsafe_compute_mask_ptr(start + row * size, size)
        if drafted:
            self._executor.unsafe_compute_mask_ptr_with_draft_token(
                drafted, start, size, len(masks)
            )

    def text_bytes(self, token: int) -> bytes:
        """See GrammarLibrary."""
        if self._tokenizer.is_special_token(token):
            return b""
        data = self._tokenizer.decode_bytes([token])
        return b"" if data == b"<[%d]>" % token else data

    def size_of(self, text: str) -> int:
        """See GrammarLibrary."""
        return _COMPILED_BYTES + _BYTES_PER_CHARACTER * len(text)


class LlguidanceMatcher(Matcher):
    """A matcher of the library; it never raises, but stays in an error state."""

    def __init__(self, native: LLMatcher) -> None:
        self.native = native

    def copy(self) -> LlguidanceMatcher:
        return LlguidanceMatcher(self.native.deep_copy())

    def accept(self, token: int) -> bool:
        return self.native.consume_token(token)

    def rollback(self, count: int) -> None:
        if count:
            self.native.rollback(count)

    def count_valid(self, tokens: Sequence[int]) -> int:
        return self.native.validate_tokens(list(tokens))

    def forced(self) -> list[int]:
        return self.native.compute_ff_tokens()

    @property
    def done(self) -> bool:
        return self.native.is_stopped()

    @property
    def error(self) -> str | None:
        if not self.native.is_error():
            return None
        return self.native.get_error().split("\n<state>")[0][:_LONGEST_ERROR]
