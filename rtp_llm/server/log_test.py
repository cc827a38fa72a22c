"""Nobody has to read the log: lines that find no room are counted, and nothing waits for them."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from rtp_llm.server import log

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
    monkeypatch.setattr(log, "MOST_LINES", MOST)
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
    assert heard.count('{"status": 200}') == 1
    parts = heard[: heard.index('{"status": 200}')], heard[heard.index('{"status": 200}') + 1 :]
    for part, word in zip(parts, ("xxx", "yyy"), strict=True):
        shown = sum(word in line for line in part)
        dropped = [re.search(r"WARNING .*: (\d+) lines were dropped here", line) for line in part]
        assert shown + sum(int(found[1]) for found in dropped if found) == SAID
        assert shown + sum(map(bool, dropped)) == len(part)
    numbers = [int(line.split()[5]) for line in parts[0] if "xxx" in line]
    assert numbers == sorted(numbers) and len(numbers) < SAID


PROGRAM = """
import logging
from rtp_llm.server import log

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
