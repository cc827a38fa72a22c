# SPDX-License-Identifier: Apache-2.0
"""What collectives exchange among ranks between the capture of a graph and its first replay."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

if TYPE_CHECKING:
    from rtp_llm.device.streams import Graph, Stream

_logger = logging.getLogger("rtp_llm.engine")


class CaptureError(RuntimeError):
    """A rank could not capture or finish a graph; no rank keeps it."""


class NoCaptureMemoryError(CaptureError):
    """All ranks that failed were short of memory."""


class CapturedCollective(Protocol):
    """A collective that finds other ranks' buffers by address, such as a custom all-reduce.

    While `capturing`, a call marks its buffer as pending: other ranks open it once the graph is
    captured.
    """

    capturing: bool

    def pending(self) -> Sequence[bytes]:
        """Handles of the pending buffers, in the order of the calls."""

    def open(self, handles: Sequence[Sequence[bytes]]) -> None:
        """Open the buffers of all ranks, by rank; replays may use them after `commit`."""

    def commit(self) -> None:
        """All ranks have opened the buffers: none is pending any more. Does not fail."""

    def discard(self) -> None:
        """Forget the pending buffers and close what was opened for them."""


class HostGroup(Protocol):
    """Ranks that communicate through host memory."""

    @property
    def size(self) -> int: ...

    def wait_for_all(self, seconds: float | None = None) -> None:
        """Return once every rank has called this; raises RuntimeError after ``seconds``."""

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, by rank."""


class _Alone:
    """The group of one rank."""

    size = 1

    def wait_for_all(self, seconds: float | None = None) -> None:
        pass

    def gather(self, value: Any) -> list[Any]:
        return [value]


class CaptureSession:
    """Surrounds every capture, on all ranks of `group` (None: only one) for the same sizes."""

    def __init__(
        self,
        group: HostGroup | None = None,
        collectives: Sequence[CapturedCollective | None] = (),
        timeout: float | None = None,
    ) -> None:
        """`collectives` are in the same order on all ranks; None if its module is missing here.

        `timeout` is how many seconds a rank waits for the others after its capture has failed. If
        steps send and receive, the others may be waiting for it in the step it left, and never
        come.
        """
        self._timeout = timeout
        self._group = group or _Alone()
        self._collectives = tuple(collectives)
        self._present = [each for each in collectives if each is not None]
        self._graphs: WeakSet[Graph] = WeakSet()
        self.capturing = False

    def end(self) -> None:
        """Free all captured graphs, whoever holds them: nothing is replayed any more.

        A communicator used by one of them waits for this before it ends.
        """
        for graph in self._graphs:
            try:
                graph.release()
            except RuntimeError:
                _logger.exception("a graph could not be freed")

    @contextmanager
    def capture(self, graph: Graph, stream: Stream | None = None) -> Iterator[None]:
        """A context to capture in; whatever happens, nothing counts as capturing afterwards."""
        self._graphs.add(graph)
        before = self.capturing, [each.capturing for each in self._present]
        try:
            self._set(True, [True] * len(self._present))
            with graph.capture(stream):
                yield
        finally:
            self._set(*before)

    def _set(self, own: bool, theirs: Sequence[bool]) -> None:
        self.capturing = own
        for collective, value in zip(self._present, theirs, strict=True):
            collective.capturing = value

    def finish_capture_session(self, failure: Exception | None = None) -> None:
        """Call once after each capture, outside of it; `failure` is what went wrong on this rank.

        Pending buffers are committed on all ranks or, if something goes wrong on any of them,
        discarded on all. Then all ranks raise CaptureError; a single rank raises its `failure`.
        Errors of the group, such as RankLostError, are raised unchanged.
        """
        try:
            self._exchange(failure)
        except BaseException:
            self._discard()
            raise
        for collective in self._present:
            collective.commit()

    def _discard(self) -> None:
        """Discard all of them, even if one fails: the error that led here is what matters."""
        for collective in self._present:
            try:
                collective.discard()
            except Exception:
                _logger.exception("a collective kept what it had captured")

    def _exchange(self, failure: Exception | None) -> None:
        handles: list[list[bytes]] = []
        if failure is None:
            try:
                handles = [list(each.pending()) if each else [] for each in self._collectives]
            except Exception as error:
                failure = error
        self._meet(failure)
        counts = self._agree([len(each) for each in handles], failure)
        if any(each != counts[0] for each in counts):
            raise CaptureError(f"ranks have different numbers of pending buffers: {counts}")
        if not any(counts[0]):
            return
        everyone = self._group.gather(handles)
        try:
            for place, collective in enumerate(self._collectives):
                if collective is not None and counts[0][place]:
                    collective.open([theirs[place] for theirs in everyone])
        except Exception as error:
            failure = error
        self._agree(None, failure)

    def _meet(self, failure: Exception | None) -> None:
        try:
            self._group.wait_for_all(None if failure is None else self._timeout)
        except RuntimeError as error:
            if failure is None:
                raise
            raise CaptureError(
                f"a graph could not be captured, and the other ranks wait for this one in its "
                f"step: {failure!r}"
            ) from error

    def _agree(self, value: Any, failure: Exception | None) -> list[Any]:
        """The values of all ranks; raises if one of them has a failure."""
        said = self._group.gather((value, None if failure is None else repr(failure)))
        reasons = [f"rank {rank}: {why}" for rank, (_, why) in enumerate(said) if why is not None]
        if failure is not None and self._group.size == 1:
            raise failure
        if reasons:
            short = [why.startswith("OutOfMemoryError") for _, why in said if why is not None]
            kind = NoCaptureMemoryError if all(short) else CaptureError
            raise kind(f"no rank keeps a graph: {'; '.join(reasons)}") from failure
        return [value for value, _ in said]
