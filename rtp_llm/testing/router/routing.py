# SPDX-License-Identifier: Apache-2.0
"""A router on a real port, before one server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from rtp_llm.config.settings import Settings
from rtp_llm.router.proxy import Proxy
from rtp_llm.router.run import server_of, workers_of
from rtp_llm.server.http.listener import bind, url_of
from rtp_llm.testing.server.serving import in_thread


@contextlib.contextmanager
def routing(worker: str, **settings: Any) -> Iterator[str]:
    """Gives its base URL; nobody watches the worker, which counts as healthy."""
    known = Settings(port=0, workers=worker, **settings)
    workers, listener = workers_of(known), bind(known)
    workers.all[0].healthy = True
    server = server_of(Proxy(workers, known), known)
    with in_thread(server, lambda: server.serve(sockets=[listener])):
        yield url_of(listener, known)
