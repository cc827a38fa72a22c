"""The preparation process: parses, renders and tokenises long bodies beside the HTTP process.

Neither a body that takes long nor one that takes all memory it may have stops the event loop: this
process has one request at a time, a limit of memory, and a parent that ends it after a while. It
talks over the socket whose descriptor is its argument.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator
from io import BufferedRWPair
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec

from rtp_llm.server.errors import ApiError, internal, too_expensive
from rtp_llm.server.prepare.messages import (
    FUNCTIONS,
    LENGTHS,
    MAX_ANSWER_BYTES,
    Call,
    Hello,
    Loaded,
    frame,
    pack,
    refuse,
)
from rtp_llm.server.prepare.served_model import ServedModel
from rtp_llm.text.grammar import GrammarError, check_grammar, choice_grammar
from rtp_llm.text.model_files import ModelFilesError
from rtp_llm.text.tokenizer import Tokenizer

# Below the HTTP process and the engine, whose streams go on meanwhile.
NICENESS = 5
# As many messages as a body that is prepared in the event loop can hold.
PROBE_MESSAGES = 128
PR_SET_PDEATHSIG = 1
# Bodies from here on leave so much behind that it is given back to the system.
TRIM_BYTES = 256 * 2**10

S = TypeVar("S", bound=msgspec.Struct)
Stream: TypeAlias = "BufferedRWPair[Any, Any]"


def main() -> int:
    """Serve until the parent closes the socket."""
    stream = socket.socket(fileno=int(sys.argv[1])).makefile("rwb")
    # What ends the parent ends this process, too; until then the parent decides.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    hello, _ = _read(stream, Hello)
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != hello.parent:
        return 0
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # What the folder deserves to be warned of the HTTP process has said.
    logging.disable(logging.WARNING)
    try:
        tokenizer = Tokenizer.from_folder(hello.model, hello.chat_template)
    except ModelFilesError as error:
        print(f"the preparation process: {error}", file=sys.stderr, flush=True)
        return 1
    _write(stream, frame(Loaded(_probe(tokenizer))))
    # The vocabulary as grammars need it, out of no request's time and memory.
    with contextlib.suppress(GrammarError):
        check_grammar(choice_grammar(["a"]), tokenizer)
    # What a request makes goes with it; looking through millions of its objects takes seconds.
    gc.disable()
    base = _address_space()
    try:
        while True:
            call, body = _read(stream, Call)
            _write(stream, _prepare(call, body, tokenizer, base))
            if len(body) >= TRIM_BYTES:
                del body
                gc.collect()
                libc.malloc_trim(0)
    except EOFError:
        return 0


def _prepare(call: Call, body: bytes, tokenizer: Tokenizer, base: int) -> list[bytes]:
    """The frame of the answer. `base`: address space, in bytes, taken before any call."""
    model = ServedModel(**vars(call.facts), tokenizer=tokenizer)
    try:
        with _limited(base + call.memory_bytes):
            answer = pack(FUNCTIONS[call.kind](body, model))
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


@contextlib.contextmanager
def _limited(size: int) -> Iterator[None]:
    """No more address space may be taken inside, in bytes."""
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


def _probe(tokenizer: Tokenizer) -> float:
    """Seconds that the template takes for a short conversation; 0 without a template."""
    if not tokenizer.has_chat_template:
        return 0.0
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": "Hello."} for i in range(PROBE_MESSAGES)]
    began = time.process_time()
    with contextlib.suppress(ValueError):
        tokenizer.apply_chat_template(messages)
    return time.process_time() - began


def _read(stream: Stream, kind: type[S]) -> tuple[S, bytes]:
    """A frame; raises EOFError when the parent is gone."""
    head, tail = LENGTHS.unpack(_exactly(stream, LENGTHS.size))
    return msgspec.msgpack.decode(_exactly(stream, head), type=kind), _exactly(stream, tail)


def _exactly(stream: Stream, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _write(stream: Stream, parts: list[bytes]) -> None:
    for part in parts:
        stream.write(part)
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
