# SPDX-License-Identifier: Apache-2.0
"""The engine process: takes requests from one client, steps, sends what the steps produced."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec
import zmq

from rtp_llm.config.settings import Settings
from rtp_llm.device.early import start_driver
from rtp_llm.engine.address import EngineAddress
from rtp_llm.engine.messages import (
    AbortRequest,
    ClientRequest,
    EngineFatal,
    EngineStartError,
    RequestError,
    RequestFailed,
    Shutdown,
    ToEngine,
    Wake,
    describe_memory_error,
)
from rtp_llm.engine.process.heartbeat import Heartbeat, end_alone, end_with_parent
from rtp_llm.engine.process.prompt_batches import PromptBatches
from rtp_llm.engine.process.sender import LogForwarder, Sender
from rtp_llm.engine.profile_messages import Profile, Profiled
from rtp_llm.engine.start.phases import Phases
from rtp_llm.request.add_prompts import AddPrompts

if TYPE_CHECKING:
    from rtp_llm.engine.serving import Built

# Takes the settings, the folder of sockets, what is called when a rank fails, and what is called
# with the loaded bytes and all bytes of the checkpoint.
Build = Callable[[Settings, Path, Callable[[str], None], Callable[[int, int], None]], "Built"]

# At the start, errors of these types were written for the user and say all.
_FOR_THE_USER = (ValueError, OSError, ImportError, EngineStartError)
_ORDERLY_SECONDS = 0.5
_logger = logging.getLogger("rtp_llm.engine")


def main(build: Build | None = None, imports: str | None = None) -> int:
    """Run the process; returns its exit code.

    The first argument is the folder of the sockets; the settings come as the first line of standard
    input, which then stays open for as long as the parent lives. With a second argument the process
    is a spare: it imports the module ``imports``, as ``build`` would, before it waits for them.
    """
    # Ctrl-C and a stop of the whole group reach this process too; its parent ends it in order.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()
    address = EngineAddress(Path(sys.argv[1]))
    settings = _read_settings(address, imports if len(sys.argv) > 2 else None)
    end_with_parent(address)
    sender = Sender(address)
    level = settings.log_level.upper()
    logging.basicConfig(level=level, format="%(message)s", handlers=[LogForwarder(sender)])
    heartbeat = Heartbeat(sender, address)
    heartbeat.start()
    serving = False
    try:
        on_rank_failure = partial(_end_with_ranks, sender)
        report = heartbeat.report_loading
        built = (build or _build)(settings, address.folder, on_rank_failure, report)
        heartbeat.source = built.engine.stats
        service = EngineService(built, address, sender)
        # What was loaded stays; a collection that walks all of torch would hold up a step.
        gc.freeze()
        sender.send(built.ready)
        serving = True
        service.run()
    except Exception as error:
        if serving or not isinstance(error, (*_FOR_THE_USER, MemoryError)):
            _logger.exception("the engine ends:")
        sender.send(EngineFatal(message=_describe(error, serving)))
        return 1
    finally:
        sender.close()
    return 0


def _read_settings(address: EngineAddress, imports: str | None) -> Settings:
    """Those in the first line of standard input, of which not a byte more is read."""
    if imports is not None:
        importlib.import_module(imports)
    with FileIO(0, closefd=False) as file:
        line = file.readline()
    if not line:  # a spare, most likely, that was never needed
        end_alone(address)
    return msgspec.json.decode(line, type=Settings)


def _build(
    settings: Settings,
    folder: Path,
    on_rank_failure: Callable[[str], None],
    report: Callable[[int, int], None],
) -> Built:
    phases = Phases()
    start_driver(settings.device_type)
    # torch takes seconds to import; by now the heartbeat is there.
    from rtp_llm.engine.ranks.tensor_ranks import RanksPlace
    from rtp_llm.engine.start.build import build_engine

    phases.end("imports")
    return build_engine(settings, report, phases, place=RanksPlace(folder, on_rank_failure))


def _end_with_ranks(sender: Sender, reason: str) -> NoReturn:
    """Another rank of the model is lost: end, even if the engine's thread waits for that rank.

    Where it need not, it has time to do so in order.
    """
    time.sleep(_ORDERLY_SECONDS)
    sender.send(EngineFatal(message=reason))
    sender.close()
    os._exit(1)


def _describe(error: Exception, serving: bool = False) -> str:
    """The message alone for errors that were written for the user, the type too for the others."""
    if isinstance(error, _FOR_THE_USER):
        return str(error)
    if isinstance(error, MemoryError):
        return describe_memory_error("generating" if serving else "loading the model")
    return f"{type(error).__name__}: {error}"


class EngineService:
    """The loop of the process: read what came, step while there is work, wait otherwise."""

    def __init__(self, built: Built, address: EngineAddress, sender: Sender) -> None:
        self._engine, self._group = built.engine, built.step_group
        self._batches = PromptBatches(built.engine, built.ready.max_running)
        self._profiler = built.profiler
        self._sender = sender
        self._inbox: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PULL)
        self._inbox.set_hwm(0)
        self._inbox.bind(address.to_engine)
        self._decoder = msgspec.msgpack.Decoder(ToEngine)
        self._poller = zmq.Poller()
        self._poller.register(self._inbox, zmq.POLLIN)
        for descriptor in self._engine.descriptors:
            self._poller.register(descriptor, zmq.POLLIN)

    def run(self) -> None:
        """Serve until the client says Shutdown. Raises what a step raises."""
        while True:
            for message in self._messages():
                if isinstance(message, Shutdown):
                    if self._group is not None:
                        self._group.leave()
                    return
                self._take(message)
            for output in self._batches.feed():
                self._sender.send(output)
            for output in self._batches.take(self._engine.step()):
                self._sender.send(output)
            if self._group is not None and self._group.stopped:
                self._group.leave()
                return
            if not self._engine.has_work:
                self._engine.work_idle()

    def _messages(self) -> Iterator[ToEngine]:
        """What has come; first waits for something while the engine has nothing to do."""
        engine = self._engine
        if not (engine.can_go_on or engine.has_idle_work or self._batches.waiting):
            self._poller.poll(self._engine.timeout_ms)
        while True:
            try:
                frame = self._inbox.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            yield self._decoder.decode(frame)

    def _take(self, message: ClientRequest | AbortRequest | Wake | Profile) -> None:
        if isinstance(message, AbortRequest):
            self._engine.abort(self._batches.abort(message.sequences))
            return
        if isinstance(message, Profile):
            self._sender.send(self._profile(start=message.start))
            return
        if self._group is not None:
            self._group.wake(message.number)
        if isinstance(message, Wake):
            return
        if isinstance(message, AddPrompts):
            self._batches.add(message)
            return
        try:
            self._engine.add(message)
        except RequestError as error:
            self._sender.send(
                RequestFailed(request_id=message.request_id, kind=error.kind, message=error.message)
            )

    def _profile(self, *, start: bool) -> Profiled:
        if self._profiler is None:
            return Profiled(error="there is no profiler: start the engine with --profiler-dir")
        return self._profiler.answer(start=start)


if __name__ == "__main__":
    sys.exit(main(imports="rtp_llm.engine.start.build"))
