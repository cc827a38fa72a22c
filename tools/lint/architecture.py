# SPDX-License-Identifier: Apache-2.0
"""ARCHITECTURE.md, the page for newcomers, only names things that exist."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = "ARCHITECTURE.md"
MAX_FILES = 12
_PASSED = re.compile(r"^\d+\. `([^`]+)`", re.MULTILINE)
_PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]*)`")


def check(root: Path) -> list[str]:
    """Return complaints about ARCHITECTURE.md in the tree at `root`."""
    text = (root / PAGE).read_text()
    passed = _PASSED.findall(text)
    complaints = [
        f"{PAGE}: {path} does not exist"
        for path in dict.fromkeys([*passed, *_PATH.findall(text)])
        if not (root / path).exists()
    ]
    if not 1 <= len(passed) <= MAX_FILES:
        complaints.append(f"{PAGE}: {len(passed)} files on a request's way, 1 to {MAX_FILES} fit")
    complaints += [
        f"{PAGE}: the folder {folder.name}/ is not named"
        for folder in sorted((root / "rtp_llm").iterdir())
        if (folder / "BUILD").exists() and f"`rtp_llm/{folder.name}/" not in text
    ]
    return complaints
