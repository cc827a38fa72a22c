# SPDX-License-Identifier: Apache-2.0
"""Usage of a key's limits: open requests, requests per minute and tokens per minute."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable

from rtp_llm.server.keys.key_file import Key
from rtp_llm.server.types.errors import ApiError

Clock = Callable[[], float]
_MINUTE = 60.0
LIMIT_HEADERS = [
    f"x-ratelimit-{what}-{name}"
    for name in ("requests", "tokens")
    for what in ("limit", "remaining", "reset")
]


class Bucket:
    """A token bucket for a per-minute limit: full at first, refilled continuously."""

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._level, self._at = float(per_minute), clock()

    @property
    def level(self) -> float:
        """The amount available now; negative if more was used than reserved."""
        now = self._clock()
        gained = (now - self._at) * self.per_minute / _MINUTE
        self._level, self._at = min(self._level + gained, float(self.per_minute)), now
        return self._level

    def take(self, amount: float) -> None:
        """Take an amount unconditionally; a negative amount is returned to the bucket."""
        self._level = min(self.level - amount, float(self.per_minute))

    def seconds_until(self, amount: float) -> float:
        """Seconds until the amount is available."""
        return max(0.0, (amount - self.level) * _MINUTE / self.per_minute)

    def resize(self, per_minute: int) -> None:
        """Change the limit; usage so far still counts."""
        used = self.per_minute - self.level
        self.per_minute = per_minute
        self._level = per_minute - used


class Account:
    """One key: its limits, its current usage, and totals since the server started."""

    def __init__(self, key: Key, clock: Clock = time.monotonic) -> None:
        self.key = key
        self.open = 0
        self.requests = self.prompt_tokens = self.completion_tokens = 0
        self.refused: Counter[str] = Counter()
        """Refused requests, by the limit that was reached."""
        self._clock = clock
        self._per_minute: dict[str, Bucket] = {}
        self.change(key)

    def change(self, key: Key) -> None:
        """Change the limits; open requests continue, and usage so far still counts."""
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
        """Raise ApiError 429 if the limits do not allow another request."""
        most = self.key.concurrency
        if most is not None and self.open >= most:
            raise self._refuse("concurrency", f"{most} requests of it are open", 1.0)
        bucket = self._per_minute.get("requests")
        if bucket is not None and bucket.level < 1:
            text = f"it may send {bucket.per_minute} requests a minute"
            raise self._refuse("requests", text, bucket.seconds_until(1))

    def begin_request(self) -> None:
        """Count a request until end_request. Raises ApiError 429."""
        self.check_request()
        if bucket := self._per_minute.get("requests"):
            bucket.take(1)
        self.open += 1
        self.requests += 1

    def prolong_request(self) -> None:
        """Keep a request open past its answer, until an additional end_request."""
        self.open += 1

    def end_request(self) -> None:
        self.open -= 1

    def reserve(self, least: int, most: int) -> float:
        """Reserve tokens for a request; returns the amount, for settle. Raises ApiError 429.

        ``least``: the tokens that it asks for; ``most``: the tokens that it may get if it has no
        max_tokens, which are reserved as far as the limit allows.
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
        """Replace a request's reservation with its actual usage."""
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens
        if bucket := self._per_minute.get("tokens"):
            bucket.take(prompt_tokens + completion_tokens - reserved)

    def _refuse(self, limit: str, why: str, seconds: float | None) -> ApiError:
        """The 429 error. ``seconds``: until a retry may succeed; None: it never will."""
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
        """The x-ratelimit-* headers of the per-minute limits, in OpenAI's format."""
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
    """A duration in OpenAI's format: 1m30s, 2.5s, 80ms."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds * 10) / 10, 60)
    return (f"{minutes:.0f}m" if minutes else "") + f"{round(rest, 1):g}s"
