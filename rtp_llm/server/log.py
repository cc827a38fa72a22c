"""Logging of the HTTP process; lines are written by a thread, so a slow reader blocks no stream."""

from __future__ import annotations

import logging
import queue
import sys
from logging.handlers import QueueHandler, QueueListener


def configure_logging(level: str) -> QueueListener:
    """Send the logs of rtp_llm and uvicorn to stderr; stop the listener to flush them.

    The access log (rtp_llm.access) is one bare JSON line per request.
    """
    plain = logging.StreamHandler(sys.stderr)
    plain.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    plain.addFilter(lambda record: record.name != "rtp_llm.access")
    bare = logging.StreamHandler(sys.stderr)
    bare.addFilter(lambda record: record.name == "rtp_llm.access")
    lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    handler = QueueHandler(lines)
    for name, lowest in (("rtp_llm", level.upper()), ("uvicorn", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(lowest)
        logger.propagate = False
    listener = QueueListener(lines, plain, bare)
    listener.start()
    return listener
