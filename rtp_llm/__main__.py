# SPDX-License-Identifier: Apache-2.0
"""`rtp-llm`, and `python -m rtp_llm` where no script of that name is on the PATH."""

from __future__ import annotations

import sys

from rtp_llm.interrupts import end_when_interrupted


def main() -> int:
    """Run the command; its exit code."""
    with end_when_interrupted("rtp-llm"):
        from rtp_llm.cli import main as run

        return run()


if __name__ == "__main__":
    sys.exit(main())
