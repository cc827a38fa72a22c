# SPDX-License-Identifier: Apache-2.0
"""Logging of the HTTP process; lines are written by a thread, so a slow reader blocks no stream."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import time
from collections.abc import Callable
from logging.handlers import QueueHandler, QueueListener

import msgspec

# Lines that wait for whoever reads stderr; more are dropped, and counted.
MOST_LINES = 8192
# At the end nobody is waited for any longer.
_FLUSH_SECONDS = 5.0
_STDERR = 2
# Of each kind of line that clients can cause (LimitedLog).
LIMITED_LINES, LIMITED_SECONDS = 10, 10.0


def configure_logging(level: str, log_format: str = "text") -> LogWriter:
    """Send the logs of rtp_llm and uvicorn to stderr; stop the writer to flush them.

    `log_format`: text, or json with one object per line. The `extra` "fields" of a record, a
    dictionary, go into either.
    """
    lines = _Lines(queue.SimpleQueue())
    for name, lowest in (("rtp_llm", level.upper()), ("uvicorn", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers = [lines]
        logger.setLevel(lowest)
        logger.propagate = False
    writer = LogWriter(lines.queue, _Stderr(_FORMATS[log_format]()))
    writer.lines = lines
    writer.start()
    return writer


class _Lines(QueueHandler):
    """Lines for the writer. Never waits: there may be nobody who reads them."""

    queue: queue.SimpleQueue[logging.LogRecord]
    _dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        """Called with the handler's lock."""
        if self.queue.qsize() >= MOST_LINES:
            self._dropped += 1
            return
        self.confess()
        self.queue.put_nowait(record)

    def confess(self) -> None:
        """Say how many lines are missing before the next one."""
        if self._dropped:
            text = f"{self._dropped} lines were dropped here: stderr was not read"
            self._dropped = 0
            fields = {"name": "rtp_llm.server", "levelname": "WARNING", "msg": text}
            self.queue.put_nowait(logging.makeLogRecord(fields))


def announce(log_format: str, text: str, **fields: object) -> None:
    """Tell who started the program: on stdout, or where all lines are JSON, as one of them.

    `text` may have several lines; JSON has the first of them, and the `fields`.
    """
    if log_format == "json":
        logging.getLogger("rtp_llm.server").info(
            "%s", text.split("\n", maxsplit=1)[0], extra={"fields": fields}
        )
    else:
        print(text, flush=True)


class LimitedLog:
    """Warnings that clients can cause: a few of each kind in ten seconds, then their number."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger, self._clock = logger, clock
        self._kinds: dict[str, tuple[float, int]] = {}

    def warning(self, kind: str, text: str, *values: object) -> None:
        """Log ``text % values`` unless as many of its kind were logged as may be."""
        now = self._clock()
        began, count = self._kinds.get(kind, (now, 0))
        if now - began >= LIMITED_SECONDS:
            if count > LIMITED_LINES:
                left_out = count - LIMITED_LINES
                self._logger.warning("%d more lines of the kind %r were left out", left_out, kind)
            began, count = now, 0
        self._kinds[kind] = began, count + 1
        if count < LIMITED_LINES:
            self._logger.warning(text, *values)


class _Text(logging.Formatter):
    """Time, level, logger, message, and fields as name=value."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        return super().format(record) + "".join(f" {k}={_word(v)}" for k, v in fields.items())


def _word(value: object) -> str:
    """Without blanks or quotes as it is; a client's text cannot pretend to be another line."""
    text = str(value)
    plain = text.isprintable() and not set(' "=').intersection(text)
    return text if plain and text else msgspec.json.encode(value).decode()


class _Json(logging.Formatter):
    """One object: time in seconds since 1970, level, logger, message, and the fields."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": record.created,
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        return msgspec.json.encode(line).decode()


_FORMATS: dict[str, Callable[[], logging.Formatter]] = {"text": _Text, "json": _Json}


class _Stderr(logging.Handler):
    """Written as it is, without a lock: a write that never ends must not hold up the process's."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.formatter: logging.Formatter = formatter

    def createLock(self) -> None:
        """One thread writes."""
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        rest = f"{self.formatter.format(record)}\n".encode(errors="backslashreplace")
        with contextlib.suppress(OSError):  # nobody will ever read it
            while rest:
                rest = rest[os.write(_STDERR, rest) :]


class LogWriter(QueueListener):
    """Writes them, in a thread."""

    lines: _Lines

    def stop(self) -> None:
        """Write what is left, if somebody reads it."""
        self.lines.confess()
        self.enqueue_sentinel()
        if self._thread is not None:
            self._thread.join(_FLUSH_SECONDS)
