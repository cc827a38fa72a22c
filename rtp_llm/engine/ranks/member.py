# SPDX-License-Identifier: Apache-2.0
"""A node that is not the first: its process starts the ranks here, and relays steps to them.

It knows no torch, no requests and no client: those are on node 0.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

from rtp_llm.config.nodes import master_address, node_key
from rtp_llm.config.roles import join_address
from rtp_llm.distributed.membership import Membership
from rtp_llm.engine.client.restarts import Restarts
from rtp_llm.engine.ranks.interfaces import interface_variables
from rtp_llm.engine.ranks.rank_start import RANK_FACTORY, rank_environment
from rtp_llm.engine.ranks.shared_settings import shared_settings
from rtp_llm.engine.ranks.topology import Topology
from rtp_llm.worker.ranks.frames import (
    Alive,
    Begin,
    End,
    Failed,
    Fork,
    Hello,
    Layout,
    Over,
    Refused,
    Sequences,
    Step,
    encode,
    from_first,
)
from rtp_llm.worker.ranks.node_link import Link, LinkError, WrongKeyError
from rtp_llm.worker.ranks.node_ranks import NodeRanks
from rtp_llm.worker.ranks.rank_failure import RankFailure, WorkerLostError
from rtp_llm.worker.ranks.rank_processes import RankProcesses

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings

_logger = logging.getLogger("rtp_llm.engine")
_RETRY_SECONDS = 0.2
# Node 0 has this long to listen again, if it is restarted, and this long to end after a loss.
_RETURN_SECONDS = 120.0
_END_SECONDS = 5.0
# Between two signs of life: node 0 waits for many of them.
_ALIVE_SECONDS = 0.5


class NodeError(RuntimeError):
    """This node cannot take part; the message says what to change."""


class _StopSignal(BaseException):
    """A signal to end."""


def hold_ranks(settings: Settings) -> int:
    """Hold this node's ranks until the engine ends; the exit code.

    0 when the engine or a signal ended them, 1 when they were lost and are not restarted. Raises
    NodeError when this node cannot take part. For the main thread.
    """
    restarts = Restarts(settings.restart_engine)
    timeout = settings.start_timeout
    try:
        with _signals():
            while True:
                reason = _one_life(settings, timeout)
                if reason is None:
                    _logger.info("node 0 has ended")
                    return 0
                if not restarts.allowed:
                    _logger.error("%s; this node ends", reason)
                    return 1
                number, _ = restarts.take()
                _logger.warning(
                    "%s; back to node 0, %d of at most %d times", reason, number, restarts.limit
                )
                timeout = min(timeout, _RETURN_SECONDS)
    except _StopSignal:
        return 0


def _one_life(settings: Settings, timeout: float) -> str | None:
    """From meeting node 0 until it is over: None in order, else why."""
    link = _come(settings, timeout)
    try:
        first = from_first(link.receive())
        if isinstance(first, Refused):
            raise NodeError(f"node 0 refuses this node: {first.reason}")
        if not isinstance(first, Begin):
            raise LinkError("it does not say where ranks meet")
        return _hold(settings, link, first)
    except LinkError as error:
        return f"node 0: {error}"
    finally:
        link.close()


def _hold(settings: Settings, link: Link, begin: Begin) -> str | None:
    count, size = settings.local_ranks, settings.num_ranks
    first = settings.node_rank * count
    members = [Membership(first + i, size, begin.rendezvous) for i in range(count)]
    topology = Topology.of(settings, is_mixture=False)
    network = interface_variables(os.environ, link.own_address)
    network["OMP_WAIT_POLICY"] = os.environ.get("OMP_WAIT_POLICY", "passive")
    inbox = _Inbox(link)
    rank_failure = inbox.rank_failure
    processes = RankProcesses(
        RANK_FACTORY,
        [(settings, each) for each in members],
        [rank_environment(i, os.environ, network) for i in range(count)],
        [topology.rank_name(each.rank) for each in members],
        rank_failure,
        first,
    )
    _logger.info(
        "node %d of %d: ranks %d to %d of %d",
        settings.node_rank,
        settings.nnodes,
        first,
        first + count - 1,
        size,
    )
    try:
        inbox.start()
        ranks = NodeRanks(processes, settings.step_timeout)
        while not isinstance(frame := inbox.frames.get(), Over):
            rank_failure.check()
            ranks.take(frame)
        return None
    except (WorkerLostError, LinkError) as error:
        rank_failure.report(str(error))
        return str(error)
    finally:
        processes.close()
        inbox.join(_END_SECONDS)  # node 0 hears first what was told


class _Inbox(threading.Thread):
    """Reads what node 0 sends as soon as it comes: a connection that is full counts as dead."""

    def __init__(self, link: Link) -> None:
        super().__init__(name="node 0", daemon=True)
        self.frames: queue.SimpleQueue[Layout | Sequences | Fork | End | Step | Over]
        self.frames = queue.SimpleQueue()
        self.rank_failure = RankFailure(self._report)
        self._link = link
        self._ended = threading.Event()
        threading.Thread(target=self.say_alive, name="alive", daemon=True).start()

    def run(self) -> None:
        """Until the end of the engine or of the connection."""
        try:
            while True:
                frame = from_first(self._link.receive())
                if isinstance(frame, (Refused, Begin)):
                    raise LinkError("it begins twice")
                self.frames.put(frame)
                if isinstance(frame, Over):
                    return
        except LinkError as error:
            self.rank_failure.report(f"node 0: {error}")

    def say_alive(self) -> None:
        """Until the connection ends; in a thread of its own, which waits for nobody."""
        frame = encode(Alive())
        with contextlib.suppress(LinkError):
            while not self._ended.wait(_ALIVE_SECONDS):
                self._link.send(frame)

    def _report(self, reason: str) -> None:
        """The ranks here can go on no more: node 0 hears of it, and who takes frames wakes up."""
        with contextlib.suppress(LinkError):  # it is the one that is gone
            self._link.send(encode(Failed(reason=reason)))
        self._ended.set()
        self._link.finish()
        self.frames.put(End(ids=(), aborted=False))


def _come(settings: Settings, timeout: float) -> Link:
    """Meet node 0, which may start later."""
    host, port = master_address(settings)
    deadline = time.monotonic() + timeout
    hello = Hello(node=settings.node_rank, shared=shared_settings(settings))
    _logger.info("looking for node 0 at %s", join_address(host, port))
    while True:
        try:
            connection = socket.create_connection((host, port), _END_SECONDS)
            link = Link(connection, node_key(settings), "other")
            link.send(encode(hello))
            return link
        except WrongKeyError as error:
            raise NodeError(f"node 0: {error}") from error
        except (OSError, LinkError) as error:
            if time.monotonic() > deadline:
                raise NodeError(
                    f"node 0 did not listen at {join_address(host, port)} within {timeout:.15g} s "
                    f"({error}): start it, with the same --master-addr"
                ) from error
            time.sleep(_RETRY_SECONDS)


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM and SIGINT end this node's ranks in order."""

    def stop(*_: object) -> NoReturn:
        raise _StopSignal

    before = {each: signal.signal(each, stop) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
