"""`rtp-llm serve` around the engine of emitting_engine.py, as a program that imports no torch."""

from __future__ import annotations

import sys

from rtp_llm.config.command_line import load_settings
from rtp_llm.engine.client import EngineClient
from rtp_llm.server.run import serve

if __name__ == "__main__":
    sys.exit(serve(load_settings(), lambda: EngineClient("benchmark.processes.emitting_engine")))
