# SPDX-License-Identifier: Apache-2.0
"""`rtp-llm serve` around the engine of emitting_engine.py, as a program that imports no torch.

ENGINE_MODULE names another program instead.
"""

from __future__ import annotations

import os
import sys

from rtp_llm.config.command_line import load_settings
from rtp_llm.server.run import engine_client, serve

MODULE_VARIABLE = "ENGINE_MODULE"

if __name__ == "__main__":
    loaded = load_settings()
    module = os.environ.get(MODULE_VARIABLE, "benchmark.processes.emitting_engine")
    sys.exit(serve(loaded, lambda: engine_client(loaded.settings, module)))
