# SPDX-License-Identifier: Apache-2.0
"""A program that ends while blocks are on their way, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

TIMEOUT = 300.0  # of what is meant to end; never waited for in full


def test_a_program_that_ends_amid_everything_ends() -> None:
    program = """
import numpy as np
from rtp_llm.native import load_runtime
runtime = load_runtime()
store = runtime.CacheStore()
server = runtime.TransferServer(store, fingerprint="f")
client = runtime.TransferClient(fingerprint="f")
memory = np.zeros(64, dtype=np.uint8)
blocks = np.array([[0, 0, 0, memory.ctypes.data, 1, 64, 64]])
store.store("r", 0, blocks, object())
load = client.load(server.address, "r", [(0, blocks), (1, blocks)], timeout=600.0)
while load.poll() != [0]:
    pass
print("end")
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], timeout=TIMEOUT, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "end\n", "")
