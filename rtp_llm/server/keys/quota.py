# SPDX-License-Identifier: Apache-2.0
"""What a key holds of its limits: requests that are open, requests and tokens a minute."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable

from rtp_llm.server.errors import ApiError
from rtp_llm.server.keys.key_file import Key

Clock = Callable[[], float]
_MINUTE = 60.0
LIMIT_HEADERS = [
    f"x-ratelimit-{what}-{name}"
    for name in ("requests", "tokens")
    for what in ("limit", "remaining", "reset")
]


class Bucket:
    """A limit for each minute: full at first, refilled all the time."""

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._level, self._at = float(per_minute), clock()

    @property
    def level(self) -> float:
        """What can be taken now; negative after more was taken than expected."""
        now = self._clock()
        gained = (now - self._at) * self.per_minute / _MINUTE
        self._level, self._at = min(self._level + gained, float(self.per_minute)), now
        return self._level

    def take(self, amount: float) -> None:
        """Take it, whatever there is; a negative amount is given back."""
        self._level = min(self.level - amount, float(self.per_minute))

    def seconds_until(self, amount: float) -> float:
        """Until so much can be taken."""
        return max(0.0, (amount - self.level) * _MINUTE / self.per_minute)

    def resize(self, per_minute: int) -> None:
        """What was used stays used."""
        used = self.per_minute - self.level
        self.per_minute = per_minute
        self._level = per_minute - used


class Account:
    """One key: its limits, what it uses of them, and counts since the server began."""

    def __init__(self, key: Key, clock: Clock = time.monotonic) -> None:
        self.key = key
        self.open = 0
        self.requests = self.prompt_tokens = self.completion_tokens = 0
        self.refused: Counter[str] = Counter()
        """By the limit that was reached."""
        self._clock = clock
        self._per_minute: dict[str, Bucket] = {}
        self.change(key)

    def change(self, key: Key) -> None:
        """Other limits from now on; what is open goes on, what was used stays used."""
        self.key = key
        wanted = {"requests": key.requests_per_minute, "tokens": key.tokens_per_minute}
        for name, limit in wanted.items():
            if limit is None:
                self._per_minute.pop(name, None)
            elif name in self._per_minute:
                self._per_minute[name].resize(limit)
            else:
                self._per_minute[name] = Bucket(limit, self._clock)

    def check_request(self) -> None:
        """Raise ApiError 429 where one more request is too many."""
        most = self.key.concurrency
        if most is not None and self.open >= most:
            raise self._refuse("concurrency", f"{most} requests of it are open", 1.0)
        bucket = self._per_minute.get("requests")
        if bucket is not None and bucket.level < 1:
            text = f"it may send {bucket.per_minute} requests a minute"
            raise self._refuse("requests", text, bucket.seconds_until(1))

    def begin_request(self) -> None:
        """Its place until end_request. Raises ApiError 429."""
        self.check_request()
        if bucket := self._per_minute.get("requests"):
            bucket.take(1)
        self.open += 1
        self.requests += 1

    def prolong_request(self) -> None:
        """It goes on after its answer, until one more end_request."""
        self.open += 1

    def end_request(self) -> None:
        self.open -= 1

    def reserve(self, least: int, most: int) -> float:
        """Tokens that a request may use, for settle; raises ApiError 429.

        ``least``: those that it asks for; ``most``: those that it may get where it names no
        max_tokens, of which as many are reserved as the limit has.
        """
        bucket = self._per_minute.get("tokens")
        if bucket is None:
            return 0.0
        limit = bucket.per_minute
        if least > limit:
            text = f"it may use {limit} tokens a minute, and the request asks for {least}"
            raise self._refuse("tokens", text + ": shorten it or lower max_tokens", None)
        wanted = max(least, min(most, limit))
        if bucket.level < wanted:
            text = f"it may use {limit} tokens a minute, and the request may take {wanted}"
            raise self._refuse("tokens", text, bucket.seconds_until(wanted))
        bucket.take(wanted)
        return wanted

    def settle(self, reserved: float, prompt_tokens: int, completion_tokens: int) -> None:
        """What the request used in the end of what it had reserved."""
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens
        if bucket := self._per_minute.get("tokens"):
            bucket.take(prompt_tokens + completion_tokens - reserved)

    def _refuse(self, limit: str, why: str, seconds: float | None) -> ApiError:
        """``seconds``: until it is worth to try again; None: it never is."""
        self.refused[limit] += 1
        again = {"x-should-retry": "false"}
        if seconds is not None:
            again = {"Retry-After": str(max(1, math.ceil(seconds)))}
        return ApiError(
            429,
            f"Rate limit reached for the key {self.key.name!r}: {why}.",
            kind="rate_limit_error",
            code="rate_limit_exceeded",
            headers=again,
        )

    def headers(self) -> list[tuple[bytes, bytes]]:
        """x-ratelimit-* of the limits for each minute, as OpenAI has them."""
        return [
            (f"x-ratelimit-{what}-{name}".encode(), value.encode())
            for name, bucket in self._per_minute.items()
            for what, value in (
                ("limit", str(bucket.per_minute)),
                ("remaining", str(max(0, math.floor(bucket.level)))),
                ("reset", duration(bucket.seconds_until(bucket.per_minute))),
            )
        ]


def duration(seconds: float) -> str:
    """As OpenAI writes it: 1m30s, 2.5s, 80ms."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds * 10) / 10, 60)
    return (f"{minutes:.0f}m" if minutes else "") + f"{round(rest, 1):g}s"
