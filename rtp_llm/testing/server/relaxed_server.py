# SPDX-License-Identifier: Apache-2.0
"""`rtp-llm serve`, as a program, on a machine that has more tests than cores.

An engine that has to wait for a core for longer than SILENCE_SECONDS is not taken for a silent one,
which would refuse requests, and one that a test stops for a while is not given up at once. One that
is gone is noticed as ever. A process waits for a restart with FAKE_SPARE=1 only.
"""

from __future__ import annotations

import sys

from rtp_llm import cli
from rtp_llm.engine.client import liveness
from rtp_llm.testing.server.spares import keep_spares_if_asked
from rtp_llm.worker.ranks import stopped

if __name__ == "__main__":
    keep_spares_if_asked()
    liveness.SILENCE_SECONDS = stopped.STOPPED_SECONDS = liveness.GONE_SECONDS
    sys.exit(cli.main(["serve", *sys.argv[1:]]))
