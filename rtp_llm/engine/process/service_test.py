# SPDX-License-Identifier: Apache-2.0
"""Tests of what the engine process does while it has no request."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import msgspec
import pytest
import zmq

from rtp_llm.engine.address import EngineAddress
from rtp_llm.engine.messages import AddRequest, Shutdown
from rtp_llm.engine.process.main import EngineService
from rtp_llm.engine.serving import Serving
from rtp_llm.request.sampling_params import SamplingParams

REQUEST = AddRequest(request_id=1, prompt_token_ids=[1], params=SamplingParams())


class Engine(Serving):
    """Has ``parts`` of idle work; in the second of them a request comes."""

    def __init__(self, parts, send):
        self.parts, self._send = parts, send
        self.log = []
        self.busy = False

    @property
    def has_work(self):
        return self.busy

    @property
    def has_idle_work(self):
        return self.parts > 0

    def work_idle(self):
        self.log.append("idle" if self.parts else "nothing")
        if not self.parts:
            return
        self.parts -= 1
        if self.log.count("idle") == 2:
            self._send(REQUEST)
        if not self.parts:
            self._send(Shutdown())

    def add(self, request):
        self.log.append("request")
        self.busy = True

    def step(self):
        if self.has_work:
            self.log.append("step")
            self.busy = self.log.count("step") < 2
        return []


@pytest.fixture
def address():
    made = EngineAddress.create()
    yield made
    made.remove()


def test_requests_wait_for_one_part_of_idle_work_and_it_waits_for_them(address):
    sender = zmq.Context.instance().socket(zmq.PUSH)
    encoder = msgspec.msgpack.Encoder()

    def send(message):
        sender.send(encoder.encode(message))
        # Until it has arrived: the service polls.
        assert service._inbox.poll(5000)

    engine = Engine(4, send)
    ready = SimpleNamespace(max_running=1)
    built = SimpleNamespace(engine=engine, ready=ready, step_group=None, profiler=None)
    service = EngineService(built, address, None)
    sender.connect(address.to_engine)
    thread = threading.Thread(target=service.run, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert engine.log == ["idle", "idle", "request", "step", "step", "idle", "idle"]
    sender.close()
