# SPDX-License-Identifier: Apache-2.0
"""`suffix` of /v1/completions."""

from __future__ import annotations

from typing import Any

import pytest

from rtp_llm.testing.server.code_model import FIM, code_model, code_tokenizer, last_prompt
from rtp_llm.testing.server.serving import events, run
from rtp_llm.text.fill_in_middle import FillInMiddle, fill_in_middle
from rtp_llm.text.tokenizer import Tokenizer

PREFIX, SUFFIX = "def add(a, b):\n    return", "\n\nprint(add(1, 2))\n"
ANSWER = " a + b"
PROMPT = f"<s><|fim_prefix|>{PREFIX}<|fim_suffix|>{SUFFIX}<|fim_middle|>"


@run
async def test_the_answer_belongs_between_prompt_and_suffix() -> None:
    async with code_model(ANSWER + "<|fim_pad|> never shown") as server:
        answer = (await server.complete(prompt=PREFIX, suffix=SUFFIX)).json()
        assert answer["choices"][0]["text"] == ANSWER
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert last_prompt(server) == PROMPT
        stops = server.engine.requests[0].params.stop_token_ids
        assert {code_tokenizer().convert_tokens_to_ids(name) for name in FIM} <= {*stops}
        streamed = await server.complete(prompt=PREFIX, suffix=SUFFIX, stream=True)
        chunks = events(streamed.text)[:-1]
        assert "".join(each["choices"][0]["text"] for each in chunks) == ANSWER


@run
async def test_several_prompts_share_a_suffix_and_may_be_token_ids() -> None:
    ids = code_tokenizer().encode(PREFIX, add_special_tokens=False)
    async with code_model(ANSWER) as server:
        body: dict[str, Any] = {"prompt": [ids, ids], "suffix": SUFFIX, "add_special_tokens": False}
        assert len((await server.complete(**body)).json()["choices"]) == 2
        assert last_prompt(server) == PROMPT.removeprefix("<s>")
        await server.complete(prompt="", suffix=SUFFIX)
        assert last_prompt(server) == PROMPT.replace(PREFIX, "")


def test_the_tokens_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def counted(tokenizer: Tokenizer, vocab_size: int) -> FillInMiddle | None:
        looked.append(vocab_size)
        return fill_in_middle(tokenizer, vocab_size)

    @run
    async def ask() -> None:
        async with code_model(ANSWER) as server:
            await server.complete(prompt=[PREFIX, "b", "c"], suffix=SUFFIX)

    monkeypatch.setattr("rtp_llm.server.turn.fill_in_middle.fill_in_middle", counted)
    ask()
    assert len(looked) == 1


@run
async def test_an_empty_suffix_asks_for_nothing() -> None:
    async with code_model(ANSWER) as server:
        assert (await server.complete(prompt="a", suffix="")).json()["choices"][0]["text"] == ANSWER
        assert last_prompt(server) == "<s>a"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"echo": True}, "echo"),
        ({"truncate_prompt_tokens": 4}, "truncate_prompt_tokens"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"suffix": "x" * 9000}, "prompt"),
        ({"suffix": 1}, "suffix"),
    ],
)
@run
async def test_what_is_refused_beside_a_suffix(more: dict[str, Any], param: str) -> None:
    async with code_model() as server:
        answer = await server.complete(**{"prompt": PREFIX, "suffix": SUFFIX, **more})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param
        assert not server.engine.requests
