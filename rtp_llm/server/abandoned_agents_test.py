# SPDX-License-Identifier: Apache-2.0
"""A client of any protocol that goes away frees what it had in the engine."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from rtp_llm.testing.server.serving import TEXT, fake_engine, listening, wait_for

SAYS: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": SAYS}),
        ("/v1/messages", {"messages": SAYS, "max_tokens": 10000}),
    ],
)
def test_what_nobody_waits_for_is_aborted(path: str, body: dict[str, Any], stream: bool) -> None:
    engine = fake_engine(TEXT * 99, step_seconds=0.01)
    with listening(engine) as url:
        if stream:
            with httpx.stream("POST", url + path, json=body | {"stream": True}) as answer:
                next(answer.iter_bytes())
        else:
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(url + path, json=body, timeout=0.2)
        wait_for(lambda: engine.aborted, 10)
        assert not engine.streams
