# SPDX-License-Identifier: Apache-2.0
"""The server to talk to: one at a URL, a child that serves a folder, or the local server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rtp_llm.chat.server_child import server_child
from rtp_llm.client.openai import OpenAIClient, ServerError, api_base
from rtp_llm.config.settings import Settings

_URL = re.compile(r"https?://\S+")
_HOST = re.compile(r"[\w.-]+:\d+(/\S*)?")


class NoTarget(Exception):
    """No server answers there; the message says what to do."""


@dataclass(frozen=True)
class Target:
    """An API, its key and the model to request."""

    base: str
    api_key: str | None
    model: str

    def client(self) -> OpenAIClient:
        """A client for the running event loop."""
        return OpenAIClient(self.base, self.api_key)


def is_url(text: str) -> bool:
    """Whether this is a URL: `https://host/v1`, or `host:8088` unless a folder has that name."""
    return bool(_URL.fullmatch(text) or (_HOST.fullmatch(text) and not Path(text).exists()))


def given_key(flag: str | None) -> str | None:
    """The API key from ``--api-key`` or from the environment."""
    found = (flag, os.environ.get("RTP_LLM_API_KEY"), os.environ.get("OPENAI_API_KEY"))
    return next((key for key in found if key), None)


@contextlib.contextmanager
def open_target(
    where: str | None, model: str | None, api_key: str | None, flags: Sequence[str]
) -> Iterator[Target]:
    """Yield the target that ``where`` names, None: the local server; it is up during the block.

    ``model``: None selects the first one served. ``flags``: of `rtp-llm serve`, for a folder.

    Raises:
        NoTarget: with what to do.
        StartFailed: see server_child.
    """
    if where is not None and not is_url(where):
        with server_child(where, flags) as (url, key):
            yield _found(url, model, key)
        return
    if flags:
        raise NoTarget(f"{flags[0]} is for a model that is loaded: give its folder")
    yield _found(where or local_url(), model, given_key(api_key), is_default=where is None)


def local_url() -> str:
    """The address at which `rtp-llm serve` listens by default."""
    port = os.environ.get("RTP_LLM_PORT") or Settings.port
    return f"http://127.0.0.1:{port}"


def _found(url: str, model: str | None, key: str | None, *, is_default: bool = False) -> Target:
    base = api_base(url if "://" in url else f"http://{url}")
    try:
        return Target(base, key, model or asyncio.run(_first_model(base, key)))
    except ServerError as error:
        raise NoTarget(_refused(base, error)) from error
    except (OSError, ValueError) as error:
        if is_default:
            raise NoTarget(
                f"no server answers at {url}. Give a model folder or the address of a server, or "
                "start one with: rtp-llm serve FOLDER"
            ) from error
        raise NoTarget(f"no server answers at {base}: {error}") from error


def _refused(base: str, error: ServerError) -> str:
    if error.status in (401, 403):
        return f"{base}: {error}; give its key with --api-key or as RTP_LLM_API_KEY"
    if error.status == 404:
        return f"{base}/models: {error}; name the model with --model"
    return f"{base}: {error}"


async def _first_model(base: str, key: str | None) -> str:
    client = OpenAIClient(base, key)
    try:
        return await client.first_model()
    finally:
        client.close()
