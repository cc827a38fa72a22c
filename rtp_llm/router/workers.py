# SPDX-License-Identifier: Apache-2.0
"""The servers behind a router, and the choice of one for each prompt."""

from __future__ import annotations

import hashlib
import ssl
import urllib.parse
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rtp_llm.config.options import SettingsError
from rtp_llm.config.roles import join_address, split_address
from rtp_llm.router.backoff import Backoff

# Prompts are compared in pieces of this many bytes, which are a few blocks of tokens.
PIECE_BYTES = 256
# The cost of generating an answer, expressed in bytes of prompt.
ANSWER_BYTES = 512
_REMEMBERED_PIECES = 65_536


@dataclass(eq=False)
class Worker:
    """One server. ``health``: its last reported health, in words; ``unanswered``: health
    checks unanswered in a row; ``open_bytes``: the cost of the requests that this router has open
    there; ``models``: its cards of /v1/models by name, None while they are unknown."""

    url: str
    host: str
    port: int
    tls: ssl.SSLContext | None = None
    healthy: bool = False
    health: str = "not asked yet"
    unanswered: int = 0
    open_requests: int = 0
    open_bytes: int = 0
    models: dict[str, Any] | None = None
    backoff: Backoff = field(default_factory=Backoff)
    known: OrderedDict[bytes, None] = field(default_factory=OrderedDict)

    @classmethod
    def parse(cls, url: str, tls: ssl.SSLContext | None = None) -> Worker:
        """A worker from http://HOST:PORT, or https:// using ``tls``.

        Raises:
            SettingsError: the address, which it names, is not valid.
        """
        try:
            parts = urllib.parse.urlsplit(url if "//" in url else f"http://{url}")
            port = parts.port
        except ValueError:
            parts, port = urllib.parse.urlsplit(""), None
        plain = parts.path in ("", "/") and not (parts.query or parts.fragment or parts.username)
        if parts.scheme not in ("http", "https") or not parts.hostname or not port or not plain:
            raise SettingsError(
                f"workers: {url!r} is not of the form http://HOST:PORT or https://HOST:PORT"
            )
        split_address("workers", join_address(parts.hostname, port))
        if parts.scheme == "http":
            tls = None
        elif tls is None:
            tls = ssl.create_default_context()
        return cls(f"{parts.scheme}://{parts.netloc}", parts.hostname, port, tls)

    def move(self, host: str, port: int) -> None:
        """Change the worker's address; its prefix cache there is empty."""
        self.host, self.port, self.healthy = host, port, False
        self.known.clear()

    @property
    def selectable(self) -> bool:
        """Whether it accepts requests and has not failed too often lately."""
        return self.healthy and self.backoff.admits

    def serves(self, model: str | None) -> bool:
        """Whether it may serve this model; None: any model will do."""
        return model is None or self.models is None or model in self.models

    def remember(self, pieces: Sequence[bytes]) -> None:
        """Assume that these pieces are in its prefix cache for a while."""
        for piece in pieces:
            self.known[piece] = None
            self.known.move_to_end(piece)
        while len(self.known) > _REMEMBERED_PIECES:
            self.known.popitem(last=False)

    def new_bytes(self, pieces: Sequence[bytes]) -> int:
        """Bytes of a prompt that it has to compute, estimated from prompts sent to it before."""
        known = 0
        for piece in pieces:
            if piece not in self.known:
                break
            known += 1
        return (len(pieces) - known) * PIECE_BYTES


class Workers:
    """All workers of a router. Belongs to one event loop."""

    def __init__(self, urls: Sequence[str], tls: ssl.SSLContext | None = None) -> None:
        """``tls``: context for https:// workers, None for the system's certificate authorities.

        Raises:
            SettingsError: an address is malformed or listed twice.
        """
        self.all = [Worker.parse(url, tls) for url in urls]
        for number, worker in enumerate(self.all):
            if any(worker.url == other.url for other in self.all[:number]):
                raise SettingsError(f"workers: {worker.url!r} is listed twice")

    @property
    def models(self) -> dict[str, Any]:
        """The cards of all models of all workers, healthy or not, by name."""
        return {name: card for each in self.all for name, card in (each.models or {}).items()}

    @property
    def sets_of_names(self) -> set[frozenset[str]]:
        """The distinct sets of names under which workers serve their models."""
        return {frozenset(each.models) for each in self.all if each.models}

    @property
    def all_models_known(self) -> bool:
        """Whether the models of every worker are known."""
        return all(worker.models is not None for worker in self.all)

    @property
    def any_healthy(self) -> bool:
        """Whether at least one worker is healthy."""
        return any(worker.healthy for worker in self.all)

    def pending(self) -> list[str]:
        """The status of each worker that does not accept requests."""
        return [f"{worker.url} ({worker.health})" for worker in self.all if not worker.healthy]

    def choose(
        self,
        pieces: Sequence[bytes],
        without: Sequence[Worker] = (),
        model: str | None = None,
    ) -> Worker | None:
        """The worker with the least work until this prompt is computed; None if none is usable.

        Ties go to the worker with the fewest open requests, then to the one with the fewest
        remembered pieces.
        """
        able = [
            worker
            for worker in self.all
            if worker.selectable and worker not in without and worker.serves(model)
        ]

        def cost(worker: Worker) -> tuple[bool, int, int, int]:
            return (
                model is not None and worker.models is None,  # it may serve another model
                worker.open_bytes + worker.new_bytes(pieces),
                worker.open_requests,
                len(worker.known),
            )

        return min(able, key=cost, default=None)


class Visit:
    """A context manager for a request at a worker, whose cost counts while it is open."""

    def __init__(self, worker: Worker, pieces: Sequence[bytes], more_bytes: int = 0) -> None:
        """``more_bytes``: bytes of the prompt that belong to no piece."""
        self._worker, self._pieces = worker, pieces
        self._cost = ANSWER_BYTES + worker.new_bytes(pieces) + more_bytes
        self._trial = False

    def __enter__(self) -> Worker:
        self._worker.open_requests += 1
        self._worker.open_bytes += self._cost
        self._worker.remember(self._pieces)
        self._trial = self._worker.backoff.begin()
        return self._worker

    def __exit__(self, *error: object) -> None:
        self._worker.open_requests -= 1
        self._worker.open_bytes -= self._cost
        self._worker.backoff.end(self._trial)


def pieces_of(text: bytes, key: bytes = b"") -> list[bytes]:
    """Hashes of a prompt's pieces; each covers its piece and everything before it.

    `key`: the client's API key, as servers with a key file partition their prefix caches by key.
    """
    names: list[bytes] = []
    parent = hashlib.blake2b(key, digest_size=8).digest() if key else b""
    for start in range(0, len(text), PIECE_BYTES):
        digest = hashlib.blake2b(parent, digest_size=8)
        digest.update(text[start : start + PIECE_BYTES])
        parent = digest.digest()
        names.append(parent)
    return names
