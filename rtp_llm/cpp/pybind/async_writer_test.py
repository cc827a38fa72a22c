# SPDX-License-Identifier: Apache-2.0
"""Python bindings of the cache store's asynchronous writer."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from rtp_llm.native import load_runtime

if TYPE_CHECKING:
    from rtp_llm._runtime import CacheStoreAsyncWriter

runtime = load_runtime()

TIMEOUT = 300.0  # of what is meant to be woken; never waited for in full


def make_writer(**options: Any) -> CacheStoreAsyncWriter:
    writer: CacheStoreAsyncWriter = runtime.CacheStoreAsyncWriter(
        **({"submit_timeout": TIMEOUT} | options)
    )
    return writer


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def wait(event: threading.Event) -> None:
    assert event.wait(TIMEOUT)


def fill(writer: CacheStoreAsyncWriter, gate: threading.Event, places: int) -> list[int]:
    """Hold up the one thread of ``writer`` at ``gate`` and take the ``places`` of its queue."""
    ran: list[int] = []
    begun = threading.Event()

    def ready() -> None:
        begun.set()
        wait(gate)

    writer.init()
    writer.submit(lambda: ran.append(0), ready)
    wait(begun)
    for place in range(places):
        writer.submit(lambda place=place: ran.append(1 + place))  # type: ignore[misc]
    assert (writer.pending, writer.queued) == (1 + places, places)
    return ran


def test_tasks_run_on_other_threads_after_their_event() -> None:
    writer = make_writer()
    calls: list[str] = []
    threads: list[int] = []

    def task() -> None:
        calls.append("task")
        threads.append(threading.get_ident())

    writer.init()
    writer.submit(task, lambda: calls.append("ready"))
    writer.wait_all_done()
    assert calls == ["ready", "task"]
    assert threads != [threading.get_ident()]
    assert writer.pending == 0


def test_waiting_lets_other_threads_run(gate: threading.Event) -> None:
    writer = make_writer(num_threads=1, queue_size=2)
    ran = fill(writer, gate, 2)

    def open_when_full() -> None:
        while writer.pending < 4:  # until submit waits for room, without the GIL
            pass
        gate.set()

    opener = threading.Thread(target=open_when_full)
    opener.start()
    writer.submit(lambda: ran.append(3))
    writer.wait_all_done()
    opener.join()
    assert ran == [0, 1, 2, 3], "one thread keeps the order"


def test_misuse_is_named() -> None:
    writer = make_writer()
    with pytest.raises(runtime.LifeCycleError, match="submit before init"):
        writer.submit(print)
    with pytest.raises(runtime.LifeCycleError, match="wait_all_done without init"):
        writer.wait_all_done()
    writer.init()
    with pytest.raises(runtime.LifeCycleError, match="init twice"):
        writer.init()
    with pytest.raises(TypeError):
        writer.submit(7)  # type: ignore[arg-type]
    writer.submit(writer.wait_all_done)
    with pytest.raises(runtime.LifeCycleError, match="from one of its own tasks"):
        writer.wait_all_done()
    assert not writer.cycle_open
    writer.shutdown(drain=True)
    for call in (writer.init, lambda: writer.submit(print), writer.wait_all_done):
        with pytest.raises(runtime.LifeCycleError, match="after shutdown"):
            call()
    assert issubclass(runtime.LifeCycleError, RuntimeError)


@pytest.mark.parametrize(
    "options",
    [
        {"num_threads": 0},
        {"num_threads": 10**9},
        {"queue_size": -1},
        {"queue_size": 2**31 - 1},
        {"when_full": "drop"},
        {"submit_timeout": 0.0},
        {"submit_timeout": float("nan")},
        {"submit_timeout": 1e9},
    ],
)
def test_options_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        make_writer(**options)


def test_full_queue_raises(gate: threading.Event) -> None:
    writer = make_writer(num_threads=1, queue_size=2, when_full="raise")
    ran = fill(writer, gate, 2)
    with pytest.raises(runtime.WriterQueueFullError, match="2 tasks queued"):
        writer.submit(lambda: ran.append(99))
    gate.set()
    writer.wait_all_done()
    assert ran == [0, 1, 2]


def test_full_queue_has_a_deadline(gate: threading.Event) -> None:
    writer = make_writer(num_threads=1, queue_size=1, submit_timeout=0.002)
    ran = fill(writer, gate, 1)
    with pytest.raises(runtime.WriterQueueFullError, match="no room within 2 ms"):
        writer.submit(lambda: ran.append(99))
    gate.set()
    writer.wait_all_done()
    assert ran == [0, 1]


def test_the_first_exception_is_the_tasks_own() -> None:
    writer = make_writer(num_threads=1)
    error = KeyError("layer 3")

    def fail(what: BaseException) -> None:
        raise what

    writer.init()
    writer.submit(lambda: fail(error))
    writer.submit(lambda: fail(OSError("later")))
    with pytest.raises(KeyError) as caught:
        writer.wait_all_done()
    assert caught.value is error
    with writer.cycle():
        writer.submit(lambda: None)
    with pytest.raises(OSError, match="event"), writer.cycle():
        writer.submit(lambda: pytest.fail("must not run"), lambda: fail(OSError("event")))


def test_the_exception_of_the_step_goes_before_those_of_tasks() -> None:
    writer = make_writer()
    ran: list[int] = []

    def task() -> None:
        ran.append(1)
        raise OSError("store")

    with pytest.raises(ValueError, match="layer 1"), writer.cycle():
        writer.submit(task)
        raise ValueError("layer 1")
    assert ran == [1]
    assert not writer.cycle_open


def test_before_task_runs_on_the_worker() -> None:
    local = threading.local()
    seen: list[int] = []
    writer = make_writer(before_task=lambda: setattr(local, "device", 3))
    with writer.cycle():
        writer.submit(lambda: seen.append(local.device), lambda: seen.append(local.device))
    assert seen == [3, 3]


def test_captures_are_gone_after_the_wait() -> None:
    class Block:
        def touch(self) -> None:
            pass

    writer = make_writer()
    block = Block()
    watched = weakref.ref(block)
    writer.init()
    writer.submit(block.touch)
    del block
    writer.wait_all_done()
    assert watched() is None


@pytest.mark.parametrize("drain", [True, False])
def test_shutdown_with_tasks_queued(drain: bool, gate: threading.Event) -> None:
    writer = make_writer(num_threads=1, queue_size=3)
    ran = fill(writer, gate, 3)
    if drain:
        gate.set()
    else:
        threading.Thread(target=lambda: _set_when_empty(writer, gate)).start()
    writer.shutdown(drain=drain)
    assert ran == ([0, 1, 2, 3] if drain else [0])
    if drain:
        writer.wait_all_done()
    else:
        with pytest.raises(runtime.TasksDroppedError, match="dropped 3 tasks"):
            writer.wait_all_done()


def _set_when_empty(writer: CacheStoreAsyncWriter, gate: threading.Event) -> None:
    while writer.queued:
        pass
    gate.set()


def test_a_task_may_hold_the_last_reference(gate: threading.Event) -> None:
    writer = make_writer()
    gone = threading.Event()
    weakref.finalize(writer, gone.set)
    writer.init()

    def task(own: CacheStoreAsyncWriter) -> None:
        wait(gate)
        assert own.cycle_open

    writer.submit(lambda writer=writer: task(writer))  # type: ignore[misc]
    del writer
    gc.collect()
    gate.set()
    wait(gone)


def test_submitting_from_many_threads() -> None:
    writer = make_writer(num_threads=3, queue_size=5)
    ran: list[int] = []
    writer.init()

    def submit_all(first: int) -> None:
        for i in range(first, first + 200):
            writer.submit(lambda i=i: ran.append(i))  # type: ignore[misc]

    threads = [threading.Thread(target=submit_all, args=(200 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.wait_all_done()
    assert sorted(ran) == list(range(800))


LEFT_BEHIND = """
import threading
from rtp_llm.native import load_runtime
writer = load_runtime().CacheStoreAsyncWriter(num_threads=2)
writer.init()
for i in range(5000):
    writer.submit(lambda: threading.Event().wait(0.001))
keep = [writer]
keep.append(keep)  # what the end of the interpreter frees last, if at all
print("left")
"""


def test_a_program_may_end_with_a_cycle_open() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LEFT_BEHIND],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": ":".join(sys.path)},
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "left\n", "")
