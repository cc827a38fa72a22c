# SPDX-License-Identifier: Apache-2.0
"""The fake engine itself."""

from __future__ import annotations

import asyncio

from rtp_llm.engine.messages import AddRequest
from rtp_llm.request.sampling_params import SamplingParams
from rtp_llm.testing.server.serving import fake_engine, run


@run
async def test_a_client_may_leave_before_the_first_step() -> None:
    failed: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    engine = fake_engine("a house.")
    params = SamplingParams(max_tokens=4)
    stream = engine.generate(AddRequest(request_id=1, prompt_token_ids=[1], params=params))
    await asyncio.sleep(0)  # the engine begins
    await stream.aclose()
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0)
    request = AddRequest(request_id=2, prompt_token_ids=[1], params=params)
    assert [delta async for delta in engine.generate(request)]
    assert engine.steps == 4 and not failed
