# SPDX-License-Identifier: Apache-2.0
"""No request body yields a 5xx: fields of the schema with values of any kind, and any bytes."""

from __future__ import annotations

import asyncio
import functools
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rtp_llm.config.refusals import REFUSALS
from rtp_llm.server.openapi import openapi_embeddings
from rtp_llm.server.turn.parse import IGNORED_FIELDS
from rtp_llm.server.types.openai_bodies import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Message,
    TokenizeRequest,
)
from rtp_llm.testing.server.pooled_bodies import POOLED_BODIES
from rtp_llm.testing.server.serving import CHAT, JSON, PROMPT, served

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 600),
    st.integers(),
    st.floats(),
    st.sampled_from([0.0, 1.0, 0.5, -1.0, 1e308, 5e-324]),
    st.text(max_size=12),
)
ANY = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(Message.__struct_fields__, ANY),
            "role": st.sampled_from(["user", "system", "assistant", "tool", "x"]),
            "content": st.text(max_size=20) | ANY,
        },
    ),
    max_size=4,
)
TEXTS = (
    st.text(max_size=9)
    | st.lists(st.text(max_size=9), max_size=20)
    | st.lists(st.integers(-1, 520), max_size=5)
    | st.lists(st.lists(st.integers(-1, 520), max_size=3), max_size=3)
)
# Values that are often valid, so that the fuzzer gets past the first check.
LIKELY: dict[str, Any] = {
    "model": st.sampled_from([None, "demo"]) | ANY,
    "messages": MESSAGES | ANY,
    "prompt": st.text(max_size=20) | st.lists(st.integers(-1, 513), max_size=5) | ANY,
    "stream": st.booleans() | ANY,
    "n": st.integers(-1, 20) | ANY,
    "stop": st.text(max_size=3) | st.lists(st.text(max_size=3), max_size=4) | ANY,
    "max_tokens": st.integers(-1, 300) | ANY,
    "logit_bias": st.dictionaries(st.integers(-1, 600).map(str), st.floats(-110, 110), max_size=3)
    | ANY,
    "allowed_token_ids": st.lists(st.integers(-1, 600), max_size=3) | ANY,
    "logprob_token_ids": st.lists(st.integers(-1, 600), max_size=3) | ANY,
    "bad_words": st.text(max_size=3) | st.lists(st.text(max_size=3), max_size=4) | ANY,
    "prompt_logprobs": st.integers(-1, 22) | ANY,
    "truncate_prompt_tokens": st.integers(-2, 300) | ANY,
    "stop_token_ids": st.lists(st.integers(-1, 600), max_size=3) | ANY,
    "stream_options": st.fixed_dictionaries({}, optional={"include_usage": st.booleans() | ANY})
    | ANY,
    "tokens": st.lists(st.integers(-1, 600), max_size=8) | ANY,
    **dict.fromkeys(("input", "inputs", "documents", "texts", "queries", "text_2"), TEXTS | ANY),
    "query": st.text(max_size=9) | ANY,
    "embedding_types": st.lists(st.sampled_from(["float", "int8", "binary", "base64"])) | ANY,
    "encoding_format": st.sampled_from(["float", "base64"]) | ANY,
    "dimensions": st.integers(-1, 5) | ANY,
    "task": st.sampled_from(["embed", "classify", "reward"]) | ANY,
    "top_n": st.integers(-1, 4) | ANY,
}


def bodies(kind: type, base: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    known = {name: LIKELY.get(name, SCALARS | ANY) for name in kind.__struct_fields__}  # type: ignore[attr-defined]
    foreign = {r.name for r in REFUSALS if r.area == "request"} | IGNORED_FIELDS | {"odd"}
    chosen = st.dictionaries(st.sampled_from([*known] * 3 + sorted(foreign)), st.none(), max_size=5)
    filled = chosen.flatmap(
        lambda names: st.fixed_dictionaries({name: known.get(name, ANY) for name in names})
    )
    return filled.map(lambda fields: {**base, **fields})


def _at(path: str, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return path, body


REQUESTS = st.one_of(
    bodies(ChatRequest, CHAT).map(lambda body: ("/v1/chat/completions", body)),
    bodies(CompletionRequest, PROMPT).map(lambda body: ("/v1/completions", body)),
    bodies(TokenizeRequest, {"prompt": "x"}).map(lambda body: ("/tokenize", body)),
    bodies(DetokenizeRequest, {"tokens": [1]}).map(lambda body: ("/detokenize", body)),
    *(
        bodies(kind, POOLED_BODIES[path]).map(functools.partial(_at, path))
        for path, kind in openapi_embeddings.BODIES.items()
        if not path.startswith("/api")
    ),
)


def send(requests: list[tuple[str, bytes]]) -> list[int]:
    async def run() -> list[int]:
        statuses = []
        async with served() as server:
            for path, body in requests:
                response = await server.client.post(path, content=body, headers=JSON)
                statuses.append(response.status_code)
                if response.status_code >= 400:
                    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
                else:
                    assert '"error"' not in response.text
            assert not server.engine.streams
            assert not server.state.answers
        return statuses

    return asyncio.run(run())


@settings(max_examples=120, deadline=None, suppress_health_check=SLOW)
@given(st.lists(REQUESTS, min_size=1, max_size=6))
def test_fields_of_any_kind(requests: list[tuple[str, dict[str, Any]]]) -> None:
    encoded = [(path, json.dumps(body).encode()) for path, body in requests]
    assert all(status < 500 for status in send(encoded))


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(st.sampled_from(["/v1/chat/completions", "/v1/completions", "/tokenize"]), st.data())
def test_damaged_bodies(path: str, data: st.DataObject) -> None:
    base = json.dumps(CHAT if "chat" in path else PROMPT).encode()
    at = data.draw(st.integers(0, len(base)))
    body = base[:at] + data.draw(st.binary(max_size=5)) + base[at + data.draw(st.integers(0, 5)) :]
    assert send([(path, body)])[0] < 500


def test_the_fuzzer_also_finds_good_requests() -> None:
    """Guards against a fuzzer whose requests all fail at the first check."""
    good = []

    @settings(max_examples=60, deadline=None, database=None, suppress_health_check=SLOW)
    @given(REQUESTS)
    def collect(request: tuple[str, dict[str, Any]]) -> None:
        path, body = request
        good.extend(s for s in send([(path, json.dumps(body).encode())]) if s == 200)

    collect()
    assert len(good) > 5
