# SPDX-License-Identifier: Apache-2.0
"""The visible text of one generated sequence: detokenised, with its stop rules applied."""

from __future__ import annotations

from collections.abc import Sequence

from rtp_llm.text.detokenizer import Detokenizer
from rtp_llm.text.stop_regex import StopRegex
from rtp_llm.text.stop_strings import StopStrings


class SequenceText:
    """Takes token ids as the engine produces them and gives back text that may be shown.

    A stop string, or a match of `stop_regex`, counts when its last character comes after the first
    `min_tokens` tokens. Once one is found, `stopped` is set, later ids are ignored, and the caller
    ends the sequence in the engine. Online and offline generation both use it, so their texts are
    equal.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: Sequence[str] = (),
        *,
        stop_regex: Sequence[str] = (),
        min_tokens: int = 0,
        include_stop: bool = False,
        track_offsets: bool = False,
    ) -> None:
        self._detokenizer = detokenizer
        self._stops: StopStrings | StopRegex | None = None
        if stop_regex:
            self._stops = StopRegex(stop_regex, stops, include=include_stop)
        elif stops:
            self._stops = StopStrings(stops, include=include_stop)
        self._min_tokens = min_tokens
        self._produced = 0
        self.num_tokens = 0
        """Tokens taken, up to the one that completed a stop string."""
        self.visible = 0
        """Characters given out so far."""
        self.offsets: list[int] | None = [] if track_offsets else None
        """Where in the text each taken token begins, when tracked."""

    @property
    def stopped(self) -> bool:
        """A stop string was found."""
        return self._stops is not None and self._stops.matched is not None

    @property
    def stop_string(self) -> str | None:
        """The stop string, or the pattern, that was found."""
        return None if self._stops is None else self._stops.matched

    def feed(self, token_ids: Sequence[int], finished: bool = False) -> str:
        """Take the next ids; `finished`: the engine ended the sequence with them."""
        if self._stops is None and self.offsets is None:
            self.num_tokens += len(token_ids)
            text = self._detokenizer.feed(token_ids)
        else:
            text = self._feed_singly(token_ids)
        if finished and not self.stopped:
            text += self._finish()
        self.visible += len(text)
        return text

    def _feed_singly(self, token_ids: Sequence[int]) -> str:
        text = ""
        for token in token_ids:
            if self.stopped:
                break
            if self.offsets is not None:
                self.offsets.append(self._produced)
            chunk = self._detokenizer.feed((token,))
            self._produced += len(chunk)
            self.num_tokens += 1
            text += self._search(chunk)
        return text

    def _search(self, chunk: str) -> str:
        if self._stops is None:
            return chunk
        if self.num_tokens <= self._min_tokens:
            return self._stops.skip(chunk)
        return self._stops.feed(chunk)

    def _finish(self) -> str:
        text = self._search(self._detokenizer.flush())
        if self._stops is not None:
            text += self._stops.flush()
        return text
