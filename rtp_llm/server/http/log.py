# SPDX-License-Identifier: Apache-2.0
"""Logging of the HTTP process; a thread writes, so that a slow reader does not block streams."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import time
from collections.abc import Callable
from logging.handlers import QueueHandler, QueueListener

import msgspec

# Lines that are queued for stderr; additional ones are dropped and counted.
MAX_LINES = 8192
# Seconds to wait for a slow reader at exit.
_FLUSH_SECONDS = 5.0
_STDERR = 2
# Limits for each kind of line that clients can cause (LimitedLog).
LIMITED_LINES, LIMITED_SECONDS = 10, 10.0


def configure_logging(level: str, log_format: str = "text") -> LogWriter:
    """Send the logs of rtp_llm and uvicorn to stderr; stop the writer to flush them.

    `log_format`: text, or json with one object per line. The `extra` "fields" of a record, a
    dictionary, appear in both formats.
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
    """Queues lines for the writer. Never blocks, as stderr may not be read."""

    queue: queue.SimpleQueue[logging.LogRecord]
    _dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        """Called with the handler's lock held."""
        if self.queue.qsize() >= MAX_LINES:
            self._dropped += 1
            return
        self.confess()
        self.queue.put_nowait(record)

    def confess(self) -> None:
        """Log the number of dropped lines before the next line."""
        if self._dropped:
            text = f"{self._dropped} lines were dropped here: stderr was not read"
            self._dropped = 0
            fields = {"name": "rtp_llm.server", "levelname": "WARNING", "msg": text}
            self.queue.put_nowait(logging.makeLogRecord(fields))


def announce(log_format: str, text: str, **fields: object) -> None:
    """Announce to the user on stdout; if the log format is JSON, as a log line instead.

    `text` may have several lines; JSON contains the first one and the `fields`.
    """
    if log_format == "json":
        logging.getLogger("rtp_llm.server").info(
            "%s", text.split("\n", maxsplit=1)[0], extra={"fields": fields}
        )
    else:
        print(text, flush=True)


class LimitedLog:
    """Rate-limits warnings that clients can cause: a few of each kind per ten seconds."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger, self._clock = logger, clock
        self._kinds: dict[str, tuple[float, int]] = {}

    def warning(self, kind: str, text: str, *values: object) -> None:
        """Log ``text % values``, or only count it if its kind has reached the limit."""
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
    """Formats as time, level, logger, message, and fields as name=value."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        return super().format(record) + "".join(f" {k}={_word(v)}" for k, v in fields.items())


def _word(value: object) -> str:
    """Quote a value unless it is a plain word, so that clients cannot forge log lines."""
    text = str(value)
    plain = text.isprintable() and not set(' "=').intersection(text)
    return text if plain and text else msgspec.json.encode(value).decode()


class _Json(logging.Formatter):
    """Formats as a JSON object: time in Unix seconds, level, logger, message, and the fields."""

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
    """Writes to stderr without a lock: a blocked write must not block the rest of the process."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.formatter: logging.Formatter = formatter

    def createLock(self) -> None:
        """No lock: only one thread writes."""
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        rest = f"{self.formatter.format(record)}\n".encode(errors="backslashreplace")
        with contextlib.suppress(OSError):  # there is no reader
            while rest:
                rest = rest[os.write(_STDERR, rest) :]


class LogWriter(QueueListener):
    """Writes the queued lines, in a thread."""

    lines: _Lines

    def stop(self) -> None:
        """Write the remaining lines, if stderr is being read."""
        self.lines.confess()
        self.enqueue_sentinel()
        if self._thread is not None:
            self._thread.join(_FLUSH_SECONDS)
