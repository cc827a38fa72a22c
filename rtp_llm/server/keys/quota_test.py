# SPDX-License-Identifier: Apache-2.0
"""The limits of one key, by a clock that the test turns."""

from __future__ import annotations

from typing import Any

import pytest

from rtp_llm.server.keys.key_file import Key
from rtp_llm.server.keys.quota import LIMIT_HEADERS, Account, duration
from rtp_llm.server.types.errors import ApiError


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def key(**limits: Any) -> Key:
    return Key(name="a", sha256="0" * 64, **limits)


@pytest.fixture(name="clock")
def _clock() -> Clock:
    return Clock()


def headers(account: Account) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in account.headers()}


def test_no_limits(clock: Clock) -> None:
    account = Account(key(), clock)
    for _ in range(1000):
        account.begin_request()
    assert account.reserve(10**9, 10**9) == 0
    assert account.headers() == []


def test_requests_a_minute(clock: Clock) -> None:
    account = Account(key(requests_per_minute=3), clock)
    for _ in range(3):
        account.begin_request()
        account.end_request()
    with pytest.raises(ApiError, match="3 requests a minute") as error:
        account.begin_request()
    assert error.value.status == 429 and error.value.code == "rate_limit_exceeded"
    assert error.value.headers == {"Retry-After": "20"}
    assert headers(account) == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1m0s",
    }
    clock.now += 20
    account.begin_request()
    clock.now += 3600
    assert headers(account)["x-ratelimit-remaining-requests"] == "3"
    assert account.refused == {"requests": 1} and account.requests == 4


def test_concurrency(clock: Clock) -> None:
    account = Account(key(concurrency=2), clock)
    account.begin_request()
    account.begin_request()
    with pytest.raises(ApiError, match="2 requests of it are open"):
        account.begin_request()
    account.end_request()
    account.begin_request()
    assert account.open == 2 and account.refused == {"concurrency": 1}


def test_tokens_are_reserved_and_corrected(clock: Clock) -> None:
    account = Account(key(tokens_per_minute=600), clock)
    reserved = account.reserve(500, 500)
    assert headers(account)["x-ratelimit-remaining-tokens"] == "100"
    with pytest.raises(ApiError, match="may take 200") as error:
        account.reserve(200, 200)
    assert error.value.headers == {"Retry-After": "10"}
    account.settle(reserved, 20, 30)
    assert headers(account)["x-ratelimit-remaining-tokens"] == "550"
    assert headers(account)["x-ratelimit-reset-tokens"] == "5s"
    assert (account.prompt_tokens, account.completion_tokens) == (20, 30)


def test_a_request_beyond_the_limit_is_never_worth_another_try(clock: Clock) -> None:
    account = Account(key(tokens_per_minute=600), clock)
    with pytest.raises(ApiError, match="asks for 601: shorten it or lower max_tokens") as error:
        account.reserve(601, 601)
    assert error.value.headers == {"x-should-retry": "false"}


def test_without_max_tokens_all_that_is_left_of_the_limit_is_reserved(clock: Clock) -> None:
    account = Account(key(tokens_per_minute=600), clock)
    reserved = account.reserve(10, 4000)
    assert reserved == 600
    account.settle(reserved, 9, 1000)  # more than was reserved: a debt
    assert headers(account)["x-ratelimit-remaining-tokens"] == "0"
    with pytest.raises(ApiError) as error:
        account.reserve(1, 1)
    assert error.value.headers == {"Retry-After": "41"}


def test_other_limits_from_now_on(clock: Clock) -> None:
    account = Account(key(tokens_per_minute=600, requests_per_minute=5), clock)
    reserved = account.reserve(500, 500)
    account.change(key(tokens_per_minute=1000))
    assert headers(account) == {
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "500",
        "x-ratelimit-reset-tokens": "30s",
    }
    account.settle(reserved, 0, 0)
    assert headers(account)["x-ratelimit-remaining-tokens"] == "1000"
    account.change(key(tokens_per_minute=10))
    assert headers(account)["x-ratelimit-remaining-tokens"] == "10"


def test_headers_that_web_pages_may_read(clock: Clock) -> None:
    account = Account(key(tokens_per_minute=1, requests_per_minute=1), clock)
    assert sorted(headers(account)) == sorted(LIMIT_HEADERS)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.0801, "81ms"), (1, "1s"), (2.41, "2.5s"), (60, "1m0s"), (359.99, "6m0s")],
)
def test_durations_as_openai_writes_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text
