# SPDX-License-Identifier: Apache-2.0
"""Where the process of rank 0 waits for the other nodes of its model."""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rtp_llm.config.nodes import master_address, node_key
from rtp_llm.config.roles import join_address
from rtp_llm.engine.messages import EngineStartError
from rtp_llm.engine.ranks.shared_settings import differences, shared_settings
from rtp_llm.worker.ranks.frames import Hello, Refused, encode, from_other
from rtp_llm.worker.ranks.node_link import Link, LinkError

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings

_logger = logging.getLogger("rtp_llm.engine")
_LOOK_SECONDS = 0.1
_HELLO_SECONDS = 10.0
# The client of this process waits a start_timeout, too, and is to hear who did not come.
_SHARE = 0.9


class Meeting:
    """Listens at the address of the settings; closed once all nodes are there."""

    def __init__(self, settings: Settings) -> None:
        """Raises EngineStartError when nobody could come there."""
        self._settings = settings
        host, port = master_address(settings)
        place = join_address(host, port)
        self._key = node_key(settings)
        self._shared = shared_settings(settings)
        self._arrived: queue.SimpleQueue[tuple[Link, Hello]] = queue.SimpleQueue()
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._listener = socket.create_server(address[:2], family=family)
        except OSError as error:
            raise EngineStartError(
                f"master_addr: node 0 cannot listen on {place}: {error.strerror or error}; give "
                "the address of an interface of this machine, and a --master-port that is free"
            ) from error
        self.address = str(self._listener.getsockname()[0])
        threading.Thread(target=self._accept, name="nodes", daemon=True).start()

    def await_nodes(self, look: Callable[[], None]) -> dict[int, Link]:
        """The other nodes by number, once all are there; ``look`` is called meanwhile.

        Raises EngineStartError naming those that did not come in time, and what ``look`` raises.
        """
        links: dict[int, Link] = {}
        expected = set(range(1, self._settings.nnodes))
        deadline = time.monotonic() + _SHARE * self._settings.start_timeout
        _logger.info("waiting for %d other nodes at %s", len(expected), self._place)
        try:
            # One that came may have gone again before the last one is here.
            while missing := {node for node in expected if not _is_here(node, links)}:
                look()
                try:
                    self._admit(*self._arrived.get(timeout=_LOOK_SECONDS), links)
                except queue.Empty:
                    if time.monotonic() > deadline:
                        raise EngineStartError(self._absent(missing)) from None
        except BaseException:
            for link in links.values():
                link.close()
            raise
        return links

    @property
    def _place(self) -> str:
        return join_address(*master_address(self._settings))

    def _absent(self, nodes: set[int]) -> str:
        numbers = ", ".join(map(str, sorted(nodes)))
        return (
            f"node {numbers} of {self._settings.nnodes} did not come within start_timeout="
            f"{self._settings.start_timeout:.15g} s: start `rtp-llm serve MODEL --node-rank "
            f"{min(nodes)}` with the same settings there; it must reach {self._place}"
        )

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        try:
            link = Link(connection, self._key, "first")
            hello = from_other(link.receive(_HELLO_SECONDS))
        except LinkError as error:
            _logger.warning("somebody came who is no node: %s", error)
            return
        if isinstance(hello, Hello):
            self._arrived.put((link, hello))
        else:
            link.close()

    def _admit(self, link: Link, hello: Hello, links: dict[int, Link]) -> None:
        node, reason = hello.node, ""
        if different := differences(self._shared, hello.shared):
            reason = "; ".join(different)
        elif not 0 < node < self._settings.nnodes:
            reason = f"node_rank: there is no node {node} of {self._settings.nnodes}"
        elif _is_here(node, links):
            reason = f"node_rank: node {node} is here already, from {links[node].peer}"
        if not reason:
            _logger.info("node %d is here, from %s", node, link.peer)
            if node in links:  # and was before
                links[node].close()
            links[node] = link
            return
        _logger.warning("node %d at %s is refused: %s", node, link.peer, reason)
        with contextlib.suppress(LinkError):  # it is gone by itself
            link.send(encode(Refused(reason=reason)))
        link.close()

    def close(self) -> None:
        """Nobody else may come."""
        with contextlib.suppress(OSError):  # it is closed already
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes who accepts
        self._listener.close()


def _is_here(node: int, links: dict[int, Link]) -> bool:
    return node in links and links[node].alive
