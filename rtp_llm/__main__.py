"""`python -m rtp_llm`: the command `rtp-llm`, where no script of that name is on the PATH."""

from __future__ import annotations

import sys

from rtp_llm.cli import main

if __name__ == "__main__":
    sys.exit(main())
