# SPDX-License-Identifier: Apache-2.0
"""`rtp-llm serve` around a fake engine, as a program: python -m ... FOLDER [flags].

A token takes 10 ms once it is allowed (AllowedSteps); a request of priority 99 kills the engine;
FAKE_START_ERROR lets it not start, FAKE_TEXT is what it says, FAKE_CONTEXT how many tokens it has.
FAKE_ENGINE=scripted takes the real client and a real process that follows a script instead, and
FAKE_ENGINE=answering one that says texts (see answering_engine.py); their restarts wait 0.2 s at
most, and a process waits for a restart with FAKE_SPARE=1 only. When its engine is dead it answers
until it is told to stop, and it refuses nobody while an engine has to wait for a core, unless
FAKE_RELAXED_TIMEOUTS=0.
"""

from __future__ import annotations

import os
import sys

from rtp_llm.config.command_line import load_settings
from rtp_llm.config.settings import Settings
from rtp_llm.engine.client import liveness, restarts
from rtp_llm.engine.messages import ClientRequest
from rtp_llm.server import lifecycle
from rtp_llm.server.http.start_error import StartError
from rtp_llm.server.run import engine_client, serve
from rtp_llm.server.types.engine_interface import EngineInterface
from rtp_llm.testing.server.fake_engine import FakeEngine, FakeStream, ready_message, say
from rtp_llm.testing.server.serving import TEXT, demo_tokenizer
from rtp_llm.testing.server.spares import keep_spares_if_asked
from rtp_llm.worker.ranks import stopped


class MortalEngine(FakeEngine):
    """Dies of a request of priority 99."""

    def generate(self, request: ClientRequest) -> FakeStream:
        stream = super().generate(request)
        if request.params.priority == 99:
            self.die("killed by request 99")
        return stream


def make_engine(settings: Settings) -> EngineInterface:
    if kind := os.environ.get("FAKE_ENGINE"):
        return engine_client(settings, f"rtp_llm.testing.engine.{kind}_engine")
    script = say(demo_tokenizer(), os.environ.get("FAKE_TEXT", TEXT))
    engine = MortalEngine(script, step_seconds=0.01)
    engine.next_ready = ready_message(int(os.environ.get("FAKE_CONTEXT", "256")))
    engine.start_error = os.environ.get("FAKE_START_ERROR")
    return engine


def relax_timeouts() -> None:
    """With clients that had to wait for a core, and with an engine that has to."""
    lifecycle.DEATH_SECONDS = 600.0
    restarts.LONGEST_DELAY_SECONDS = 0.2
    keep_spares_if_asked()
    stopped.STOPPED_SECONDS = liveness.GONE_SECONDS  # tests stop an engine to have it wait
    if os.environ.get("FAKE_RELAXED_TIMEOUTS") != "0":
        liveness.SILENCE_SECONDS = liveness.GONE_SECONDS


if __name__ == "__main__":
    relax_timeouts()
    try:
        loaded = load_settings()
        sys.exit(serve(loaded, lambda: make_engine(loaded.settings)))
    except StartError as error:
        sys.exit(f"error: {error}")
