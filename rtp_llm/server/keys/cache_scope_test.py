# SPDX-License-Identifier: Apache-2.0
"""Which keys share cached prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rtp_llm.server.keys import key_ring
from rtp_llm.testing.server.keys import bearer, entry, key_file
from rtp_llm.testing.server.served_model import save_served_model
from rtp_llm.testing.server.serving import CHAT, PROMPT, Served, run, served
from rtp_llm.testing.server_processes import REAL, TIMEOUT, process

A, B, C, D, OWNER = "sk-a", "sk-b", "sk-c", "sk-d", "sk-owner"
STORY = "Once upon a time there was a small house, and in the house lived a cat. "
SHARED = {"share_cache": '"team"'}


async def scope_of(server: Served, key: str | None, path: str, **body: Any) -> str:
    """The key of the prefix cache that a request of ``key`` reaches."""
    before = len(server.engine.requests)
    headers = bearer(key) if key else {}
    answer = await server.client.post(path, json={"model": "demo", **body}, headers=headers)
    assert answer.status_code == 200, answer.text
    while len(server.engine.requests) == before:  # in the background
        await asyncio.sleep(0)
    return server.engine.requests[before].extra_key


ENDPOINTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/completions", PROMPT),
    ("/v1/completions", {"prompt": ["a", "b"], "n": 2}),
    ("/v1/responses", {"input": "Hello"}),
    ("/v1/responses", {"input": "Hello", "background": True}),
    ("/v1/messages", CHAT | {"max_tokens": 9}),
    ("/api/chat", CHAT),
    ("/api/generate", PROMPT),
]


@run
async def test_every_endpoint_is_parted_by_key(tmp_path: Path) -> None:
    path = key_file(tmp_path / "keys", entry(A, "a"), entry(B, "b", **SHARED))
    async with served(api_key_file=path, api_key=OWNER, max_stored_responses=9) as server:
        for endpoint, body in ENDPOINTS:
            for key, scope in ((A, "key:a\n"), (B, "group:team\n"), (OWNER, "key:\n")):
                assert await scope_of(server, key, endpoint, **body) == scope, endpoint
        scopes = {request.extra_key for request in server.engine.requests}
        assert len(scopes) == 3


@run
async def test_a_salt_cannot_reach_what_another_key_has(tmp_path: Path) -> None:
    path = key_file(tmp_path / "keys", entry(A, "a"), entry(B, "b", **SHARED))
    async with served(api_key_file=path, api_key=OWNER) as server:
        for salt in ("", "s", "\n", "a\n", "key:a\n", "group:team\n"):
            for key, scope in ((A, "key:a\n"), (B, "group:team\n"), (OWNER, "key:\n")):
                requested = PROMPT | {"cache_salt": salt}
                assert await scope_of(server, key, "/v1/completions", **requested) == scope + salt


@run
async def test_without_keys_only_the_salt_counts() -> None:
    async with served() as server:
        requested = PROMPT | {"cache_salt": "s"}
        assert await scope_of(server, None, "/v1/completions", **requested) == "s"
        assert await scope_of(server, A, "/v1/completions", **PROMPT) == ""


@run
async def test_a_changed_file_changes_who_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_ring, "CHECK_SECONDS", 0.0)
    path = tmp_path / "keys"
    key_file(path, entry(A, "a"))
    async with served(api_key_file=str(path)) as server:
        for fields, scope in ((SHARED, "group:team\n"), ({}, "key:a\n")):
            Path(key_file(tmp_path / "new", entry(A, "a", **fields))).rename(path)
            assert await scope_of(server, A, "/v1/completions", **PROMPT) == scope


# -- With the real prefix cache ----------------------------------------------------------------


@pytest.fixture(scope="module", name="url")
def _url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("models")
    save_served_model(folder / "tiny", context=1024, kv_heads=1)
    keys = [entry(A, "a"), entry(B, "b"), entry(C, "c", **SHARED), entry(D, "d", **SHARED)]
    flags = ["--api-key-file", key_file(folder / "keys", *keys), "--api-key", OWNER]
    flags += ["--dtype", "float32", "--num-threads", "1", "--kv-cache-mem-mb", "16"]
    with process(*flags, command=REAL, model=folder / "tiny") as server:
        yield server.url


def cached_tokens(url: str, key: str, path: str, **body: Any) -> int:
    """How many tokens of its prompt were found cached."""
    requested = {"model": "tiny", "max_tokens": 2, **body}
    answer = httpx.post(f"{url}{path}", json=requested, headers=bearer(key), timeout=TIMEOUT)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    for details in ("prompt_tokens_details", "input_tokens_details"):
        if details in usage:
            return int(usage[details]["cached_tokens"])
    return int(usage["cache_read_input_tokens"])


CHATS: Any = [{"role": "user", "content": STORY * 2}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": CHATS}),
        ("/v1/completions", {"prompt": STORY * 3}),
        ("/v1/responses", {"input": STORY, "instructions": "Think.", "max_tokens": None}),
        ("/v1/messages", {"messages": CHATS, "system": "Be brief."}),
    ],
)
def test_no_key_learns_what_another_one_asked(url: str, path: str, body: dict[str, Any]) -> None:
    for key in (A, B, OWNER, C):
        assert cached_tokens(url, key, path, **body) == 0
        assert cached_tokens(url, key, path, **body) >= 16, "its own"
    assert cached_tokens(url, D, path, **body) >= 16, "it shares C's"
    assert cached_tokens(url, A, path, **body) >= 16
