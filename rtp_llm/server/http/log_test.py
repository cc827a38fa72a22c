# SPDX-License-Identifier: Apache-2.0
"""Nobody has to read the log: lines that find no room are counted, and nothing waits for them."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from rtp_llm.server.http import log

MOST, SAID = 20, 5000


class Stderr:
    """A pipe, whose lines are read when we want them to be."""

    def __init__(self) -> None:
        reading, self.writing = os.pipe()
        self._file = os.fdopen(reading)
        self._lines: list[str] = []
        self._reader = threading.Thread(target=lambda: self._lines.extend(self._file))

    def read(self) -> None:
        self._reader.start()

    def all_lines(self) -> list[str]:
        """When nobody writes any more."""
        os.close(self.writing)
        self._reader.join()
        self._file.close()
        return [line.rstrip() for line in self._lines]


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stderr]:
    loggers = [logging.getLogger(name) for name in ("rtp_llm", "uvicorn")]
    before = [(each.handlers, each.level, each.propagate) for each in loggers]
    made = Stderr()
    monkeypatch.setattr(log, "_STDERR", made.writing)
    monkeypatch.setattr(log, "MAX_LINES", MOST)
    yield made
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


def test_what_nobody_reads_is_dropped_and_said(stderr: Stderr) -> None:
    """Where it is missing: before the next line that finds room, or at the end."""
    writer = log.configure_logging("info")
    lines, access = logging.getLogger("rtp_llm.x"), logging.getLogger("rtp_llm.access")
    for number in range(SAID):
        lines.info("line %d of a log: %s", number, "x" * 100)
    assert writer.queue.qsize() <= MOST + 1
    stderr.read()
    while writer.queue.qsize():
        time.sleep(0.001)
    access.info('{"status": %d}', 200)
    for _ in range(SAID):
        logging.getLogger("uvicorn").warning("what else is there: %s", "y" * 100)
    writer.stop()
    heard = stderr.all_lines()
    (middle,) = [number for number, line in enumerate(heard) if line.endswith('{"status": 200}')]
    parts = heard[:middle], heard[middle + 1 :]
    for part, word in zip(parts, ("xxx", "yyy"), strict=True):
        shown = sum(word in line for line in part)
        dropped = [re.search(r"WARNING .*: (\d+) lines were dropped here", line) for line in part]
        assert shown + sum(int(found[1]) for found in dropped if found) == SAID
        assert shown + sum(map(bool, dropped)) == len(part)
    numbers = [int(line.split()[5]) for line in parts[0] if "xxx" in line]
    assert numbers == sorted(numbers) and len(numbers) < SAID


SAID_BY_A_CLIENT = 'a"b c\n2026-01-01 00:00:00,000 INFO rtp_llm.server: forged'


def say_something() -> None:
    """A plain line, one of a request, one with a traceback, one of a library."""
    logger = logging.getLogger("rtp_llm.engine")
    logger.info("loaded %d layers", 3)
    fields = {"id": "r1", "path": SAID_BY_A_CLIENT, "seconds": 0.25, "client": ""}
    logging.getLogger("rtp_llm.access").info("request", extra={"fields": fields})
    try:
        raise KeyError("x")
    except KeyError:
        logger.exception("it broke:")
    logging.getLogger("uvicorn.error").warning("slow")


def test_json_has_one_object_per_line(stderr: Stderr) -> None:
    writer = log.configure_logging("info", "json")
    before = time.time()
    say_something()
    log.announce("json", "ready: http://x\n  more", url="http://x")
    writer.stop()
    stderr.read()
    lines = [json.loads(line) for line in stderr.all_lines()]
    assert [line["logger"] for line in lines] == [
        "rtp_llm.engine",
        "rtp_llm.access",
        "rtp_llm.engine",
        "uvicorn.error",
        "rtp_llm.server",
    ]
    assert all(before - 1 < line["time"] < time.time() + 1 for line in lines)
    assert [line["level"] for line in lines] == ["INFO", "INFO", "ERROR", "WARNING", "INFO"]
    plain, request, broken, _, ready = lines
    assert plain["message"] == "loaded 3 layers" and set(plain) == {*request} & {*plain}
    assert request["path"] == SAID_BY_A_CLIENT and request["seconds"] == 0.25
    assert "KeyError: 'x'" in broken["message"] and "Traceback" in broken["message"]
    assert ready["message"] == "ready: http://x" and ready["url"] == "http://x"


def test_text_has_one_form_for_all_lines(
    stderr: Stderr, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = log.configure_logging("info")
    say_something()
    log.announce("text", "ready: http://x\n  more", url="http://x")
    writer.stop()
    stderr.read()
    lines = stderr.all_lines()
    form = re.compile(r"[\d-]{10} [\d:]{8},\d{3} (INFO|ERROR|WARNING) [\w.]+: ")
    traceback = [line for line in lines if not form.match(line)]
    assert traceback[0].startswith("Traceback") and traceback[-1] == "KeyError: 'x'"
    request = next(line for line in lines if "rtp_llm.access" in line)
    assert " id=r1 " in request and ' seconds=0.25 client=""' in request
    assert r'path="a\"b c\n2026' in request, "what a client says stays in its line"
    assert capsys.readouterr().out == "ready: http://x\n  more\n"


PROGRAM = """
import logging
from rtp_llm.server.http import log

log._FLUSH_SECONDS = 0.1
writer = log.configure_logging("info")
for number in range(20_000):
    logging.getLogger("rtp_llm").info("line %d", number)
writer.stop()
"""


def test_a_process_ends_whoever_reads_its_log() -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE) as process:
        assert process.wait(60) == 0
