# SPDX-License-Identifier: Apache-2.0
"""A preparation process: parses, renders and tokenises long bodies, or compiles grammars.

A body that takes too much time or memory does not block the event loop: such a process handles one
request at a time, has a memory limit, and is killed by its parent after a timeout.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import socket
import sys
from collections.abc import Iterator
from io import BufferedRWPair
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from rtp_llm.server.offload.kinds import KINDS
from rtp_llm.server.offload.wire import (
    LENGTHS,
    MAX_ANSWER_BYTES,
    Call,
    pack,
    refuse,
)
from rtp_llm.server.turn.served_model import ServedModel
from rtp_llm.server.types.errors import ApiError, internal, too_expensive
from rtp_llm.text.tokenizer import Tokenizer

# After bodies of at least this size, freed memory is returned to the system.
TRIM_BYTES = 256 * 2**10
# Many texts are tokenised by several threads, if their body has at least this size; address space
# of each: its stack, and what the allocator reserves.
PARALLEL_BYTES = 16 * 2**10
MAX_THREADS, THREAD_BYTES = 4, 144 * 2**20

Stream: TypeAlias = "BufferedRWPair[Any, Any]"


def work(connection: socket.socket, tokenizer: Tokenizer) -> int:
    """Answer calls until the other end closes; returns the exit code."""
    stream = connection.makefile("rwb")
    libc = ctypes.CDLL(None)
    base, has_threads = _address_space(), False
    try:
        while True:
            call, body = _read(stream)
            parallel = KINDS[call.kind].pools and len(body) >= PARALLEL_BYTES
            if parallel and not has_threads:  # they stay until the process ends
                base, has_threads = base + _threads() * THREAD_BYTES, True
            with _parallel() if parallel else contextlib.nullcontext():
                answer = _prepare(call, body, tokenizer, base)
            _write(stream, answer)
            if len(body) >= TRIM_BYTES:
                del body
                gc.collect()
                libc.malloc_trim(0)
    except (EOFError, ConnectionError):
        return 0


def _prepare(call: Call, body: bytes, tokenizer: Tokenizer, base: int) -> list[bytes]:
    """The frame of the answer. `base`: address space, in bytes, that no call has to account for."""
    model, kind = ServedModel(**vars(call.facts), tokenizer=tokenizer), KINDS[call.kind]
    try:
        with _limited(base + call.memory_bytes):
            answer = pack(kind, kind.prepare(body, model))
        if sum(map(len, answer)) > MAX_ANSWER_BYTES:
            raise too_expensive(f"an answer of more than {MAX_ANSWER_BYTES >> 20} MiB")
        return answer
    except ApiError as error:
        return refuse(error)
    except MemoryError:
        return refuse(too_expensive(f"more than {call.memory_bytes >> 20} MiB of memory"))
    except Exception:
        sys.excepthook(*sys.exc_info())
        return refuse(internal())


def _threads() -> int:
    return min(MAX_THREADS, len(os.sched_getaffinity(0)))


@contextlib.contextmanager
def _parallel() -> Iterator[None]:
    """Let the tokenizer share a batch of texts among threads during the block."""
    before = os.environ.get("TOKENIZERS_PARALLELISM", "false")
    os.environ["RAYON_NUM_THREADS"] = str(_threads())  # read when the first of them starts
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if _threads() > 1 else before
    try:
        yield
    finally:
        os.environ["TOKENIZERS_PARALLELISM"] = before


@contextlib.contextmanager
def _limited(size: int) -> Iterator[None]:
    """Limit the address space, in bytes, during the block."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    soft, hard = before
    if soft == resource.RLIM_INFINITY or size < soft:
        resource.setrlimit(resource.RLIMIT_AS, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _read(stream: Stream) -> tuple[Call, bytes]:
    """Read a frame; raises EOFError if the other end is closed."""
    head, tail = LENGTHS.unpack(_exactly(stream, LENGTHS.size))
    return msgspec.msgpack.decode(_exactly(stream, head), type=Call), _exactly(stream, tail)


def _exactly(stream: Stream, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _write(stream: Stream, parts: list[bytes]) -> None:
    for part in parts:
        stream.write(part)
    stream.flush()
