# SPDX-License-Identifier: Apache-2.0
"""Child processes that find this package, and end with the process that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # of prctl; exec keeps what it sets
_RUN = (
    f"import ctypes, os, sys; ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {signal.SIGKILL:d}); "
    "os.execv(sys.executable, [sys.executable, '-m', 'rtp_llm', *sys.argv[1:]])"
)


def bound_command(*words: str) -> list[str]:
    """`rtp-llm WORDS`, which gets SIGKILL when the thread that started it ends."""
    return [sys.executable, "-c", _RUN, *words]


def end_with_parent(parent: int) -> bool:
    """Have the kernel kill this process when its parent ends, however that ends.

    Returns whether ``parent``, the pid of the process that started this one, is still there.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def python_path() -> str:
    """PYTHONPATH of this process for a child, with this very package importable."""
    root = str(Path(__file__).parents[1])
    return os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
