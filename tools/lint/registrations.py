# SPDX-License-Identifier: Apache-2.0
"""Most kernels are registered by generated glue: how many are registered by hand has a limit."""

from __future__ import annotations

import re
from pathlib import Path

KERNELS = "rtp_llm/kernels"
OF_TESTS = "rtp_llm/kernels/xpu/bridge"  # its own registrations are not kernels
MAX_REGISTRATIONS = 25
_REGISTRATION = re.compile(r"\bimplement(?:_uncounted)?<")


def counts(root: Path) -> dict[str, int]:
    """Return how many kernels each source file of the tree at `root` registers by hand.

    Files are named by their path relative to `root`; files that register nothing are left out, and
    so are streams, events and memory of the tests' bridge.
    """
    found = {
        str(path.relative_to(root)): len(_REGISTRATION.findall(path.read_text()))
        for path in sorted((root / KERNELS).rglob("*.cc"))
        if root / OF_TESTS not in path.parents
    }
    return {path: count for path, count in found.items() if count}


def check(root: Path) -> list[str]:
    """Print how many kernels are registered by hand; return a complaint if they are too many."""
    found = counts(root)
    total = sum(found.values())
    print(f"{total} kernels are registered by hand, of at most {MAX_REGISTRATIONS}")
    if total <= MAX_REGISTRATIONS:
        return []
    where = ", ".join(f"{path} {count}" for path, count in found.items())
    return [
        f"{total} kernels are registered by hand; at most {MAX_REGISTRATIONS} may be: mark new "
        "ones with RTP_LLM_OPERATOR, and rtp_llm/ops/generate.py makes their glue. Registered in "
        f"{where}"
    ]
