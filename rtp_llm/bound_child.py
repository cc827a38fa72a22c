# SPDX-License-Identifier: Apache-2.0
"""Server child processes that end with the process that started them, however that ends."""

from __future__ import annotations

import sys

# PR_SET_PDEATHSIG, which exec keeps.
_RUN = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.execv(sys.executable, [sys.executable, '-m', 'rtp_llm', *sys.argv[1:]])"
)


def bound_command(*words: str) -> list[str]:
    """`rtp-llm WORDS`, which gets SIGKILL when the thread that started it ends."""
    return [sys.executable, "-c", _RUN, *words]
