# SPDX-License-Identifier: Apache-2.0
"""A hundred hostile schemas, patterns and grammars of one client, and what others notice of them.

Prints what `/health` and another client's short chats took meanwhile. Goals: 250 ms and 1 s at the
99th percentile; the limits here are ten times that.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from rtp_llm.testing.server.serving import CHAT, run
from rtp_llm.testing.server_processes import TIMEOUT, process
from rtp_llm.text.grammar.check import DEADLINE_SECONDS

HEALTH_SECONDS, CHAT_SECONDS = 2.5, 10.0
# How long after its turn a grammar may be refused.
LATE_SECONDS = 5.0
SHORT = {**CHAT, "max_tokens": 1}
Fields = dict[str, Any]


def schema(content: Any) -> Fields:
    return {"structured_outputs": {"json": content}}


def nested(depth: int) -> Any:
    inner: Any = {"type": "string"}
    for _ in range(depth):
        inner = {"anyOf": [{"type": "array", "items": inner}, {"type": "object"}]}
    return inner


def schemas(n: int) -> list[Fields]:
    """Of growing `n`: many subschemas, patterns that are to hold together, chains, unions."""
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(50 * n)}
    chain[f"d{50 * n}"] = {"type": "integer"}
    both = [{"type": "string", "pattern": f"[a-z]{{{i},}}x"} for i in range(1, 3 + n)]
    return [
        schema({"type": "array", "prefixItems": [{"type": "integer"}] * (1000 * n)}),
        schema({"allOf": both}),
        schema({"$ref": "#/$defs/d0", "$defs": chain}),
        schema({"properties": {f"p{i}": {"pattern": f"^{i}.*{i}$"} for i in range(50 * n)}}),
        schema({"enum": [f"{i}-{7919 * i}" for i in range(1000 * n)]}),
        schema({"oneOf": [{"required": [f"a{i}"]} for i in range(4 * n)]}),
        schema({"type": "object", "minProperties": 10**n, "maxProperties": 10 ** (n + 1)}),
        schema(nested(6 * n)),
        schema({"type": "string", "minLength": 10**n, "maxLength": 10 ** (n + 2)}),
        schema({"type": "array", "uniqueItems": True, "contains": {"multipleOf": 997 * n}}),
    ]


def others(n: int) -> list[Fields]:
    """Patterns, EBNF and structural tags."""
    rules = "\n".join(f'r{i} ::= "a" r{i + 1} | "b" r{i + 1}' for i in range(900 * n))
    tag = {"type": "json_schema", "json_schema": {"properties": {"q": {"type": "integer"}}}}
    tags = {"type": "structural_tag", "format": {"type": "or", "elements": [tag] * (100 * n)}}
    return [
        {"guided_regex": f"(a{{{100 * n}}}){{1000}}"},
        {"guided_regex": rf"(\p{{L}}|\p{{N}}|\p{{P}}){{1,{500 * n}}}"},
        {"guided_regex": f".*a.{{{4 * n}}}b.*c.{{{4 * n}}}d"},
        {"guided_regex": "(" * 20 * n + "a" + ")*" * 20 * n},
        {"guided_grammar": f'root ::= r0\n{rules}\nr{900 * n} ::= "c"'},
        {"guided_grammar": 'root ::= root root | root "a" | "b"' + " | root root" * n},
        {"structural_tag": tags},
        {"guided_choice": [f"{i}" * 20 for i in range(500 * n)]},
    ]


HOSTILE = [fields for n in range(1, 6) for fields in (*schemas(n), *others(n))]
HOSTILE += [schema({"allOf": [{"pattern": f"{i}{j}.*x"} for i in range(9)]}) for j in range(10)]


class Watch:
    """Asks again and again, and keeps how long each answer took."""

    def __init__(self, ask: Callable[[], Awaitable[httpx.Response]]) -> None:
        self.seconds: list[float] = []
        self._ask, self._task = ask, asyncio.create_task(self._go_on())

    async def _go_on(self) -> None:
        while True:
            began = time.monotonic()
            assert (await self._ask()).status_code == 200
            self.seconds.append(time.monotonic() - began)
            await asyncio.sleep(0.05)

    async def end(self) -> list[float]:
        """Shortest first."""
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.result()
        return sorted(self.seconds)


def percentile(seconds: list[float], share: float) -> float:
    return seconds[int(share * len(seconds))]


@run
async def test_hostile_grammars_of_one_client_hold_up_no_other() -> None:
    assert len(HOSTILE) == 100
    with process(
        "--access-log", "off", "--prepare-processes", "2", FAKE_ENGINE="scripted"
    ) as server:
        local = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
        async with (
            httpx.AsyncClient(base_url=server.url, timeout=TIMEOUT) as hostile,
            httpx.AsyncClient(base_url=server.url, timeout=TIMEOUT, transport=local) as other,
        ):
            health = Watch(lambda: other.get("/health"))
            chats = Watch(lambda: other.post("/v1/chat/completions", json=SHORT))
            answers = [await ask(hostile, fields) for fields in HOSTILE]
            began = time.monotonic()
            again = await asyncio.gather(*(ask(hostile, fields) for fields in HOSTILE))
            again_seconds = time.monotonic() - began
            health_seconds, chat_seconds = await health.end(), await chats.end()
    codes = Counter(answer.status_code for answer, _ in answers)
    print(json.dumps({str(code): count for code, count in codes.items()}))
    slowest = max(seconds for _, seconds in answers)
    print(f"slowest {slowest:.2f} s; all again, at once: {again_seconds:.2f} s")
    for name, found in (("/health", health_seconds), ("chat", chat_seconds)):
        middle, most = percentile(found, 0.5), percentile(found, 0.99)
        print(f"{name}: {len(found)}, p50 {1e3 * middle:.0f} ms, p99 {1e3 * most:.0f} ms")
    assert set(codes) <= {200, 400}
    assert {answer.status_code for answer, _ in again} <= {200, 400}
    assert slowest < DEADLINE_SECONDS + LATE_SECONDS
    assert percentile(health_seconds, 0.99) < HEALTH_SECONDS
    assert percentile(chat_seconds, 0.99) < CHAT_SECONDS


async def ask(client: httpx.AsyncClient, fields: Fields) -> tuple[httpx.Response, float]:
    began = time.monotonic()
    answer = await client.post("/v1/chat/completions", json={**SHORT, **fields})
    return answer, time.monotonic() - began
