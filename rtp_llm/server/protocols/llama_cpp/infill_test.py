# SPDX-License-Identifier: Apache-2.0
"""POST /infill: what is asked of the engine, and what is answered."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rtp_llm.server.protocols.llama_cpp.answers import InfillAnswer, InfillChunk
from rtp_llm.testing.server.agent_clients import agents
from rtp_llm.testing.server.code_model import code_model, code_tokenizer, last_prompt
from rtp_llm.testing.server.serving import events, run

PREFIX, SUFFIX, BEGUN = "def add(a, b):\n", "\n\nprint(add(1, 2))\n", "    return"
BODY: dict[str, Any] = {"input_prefix": PREFIX, "input_suffix": SUFFIX, "prompt": BEGUN}
ANSWER = " a + b"
HEAD = "<s><|repo_name|>myproject\n"
END = f"<|file_sep|>filename\n<|fim_prefix|>{PREFIX}{BEGUN}<|fim_suffix|>{SUFFIX}<|fim_middle|>"
# As llama.vim sends it.
VIM: dict[str, Any] = BODY | {
    "id_slot": 0,
    "input_extra": [{"filename": "a.py", "text": "A = 1\n"}, {"text": "B = 2\n"}],
    "n_predict": 128,
    "stop": [],
    "n_indent": 4,
    "top_k": 40,
    "top_p": 0.9,
    "stream": False,
    "samplers": ["top_k", "top_p", "infill"],
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 1000,
    "response_fields": ["content", "timings/prompt_n", "timings/prompt_ms", "truncated", "none"],
}


@run
async def test_the_answer_belongs_between_prefix_and_suffix() -> None:
    async with code_model(ANSWER + "<|fim_pad|> never shown") as server:
        response = await server.post("/infill", **BODY, return_tokens=True)
        answer = msgspec.json.decode(response.content, type=InfillAnswer)
        assert (answer.content, answer.stop, answer.stop_type) == (ANSWER, True, "eos")
        assert answer.tokens[:-1] == code_tokenizer().encode(ANSWER, add_special_tokens=False)
        assert last_prompt(server) == HEAD + END
        requested = server.engine.requests[0]
        assert answer.tokens_evaluated == len(requested.prompt_token_ids)
        assert answer.tokens_predicted == answer.timings.predicted_n == len(answer.tokens)
        assert answer.model == "demo" and not answer.truncated and not answer.has_new_line
        streamed = await server.post("/infill", **BODY, stream=True)
        assert streamed.headers["content-type"].startswith("text/event-stream")
        *chunks, last = (msgspec.json.encode(each) for each in events(streamed.text))
        parts = [msgspec.json.decode(each, type=InfillChunk) for each in chunks]
        assert "".join(each.content for each in parts) == ANSWER
        ended = msgspec.json.decode(last, type=InfillAnswer)
        assert ended.content == "" and ended.tokens_predicted == answer.tokens_predicted


@run
async def test_what_llama_vim_sends_and_reads() -> None:
    async with code_model(ANSWER + "\n    b = 1\n  c = 2\n") as server:
        response = await server.post("/infill", **VIM)
        answer = response.json()
        assert answer["content"] == ANSWER + "\n    b = 1"
        assert answer.keys() == {"content", "timings/prompt_n", "timings/prompt_ms", "truncated"}
        assert response.headers["x-rtp-llm-ignored-fields"] == "samplers"
        pieces = "<|file_sep|>a.py\nA = 1\n<|file_sep|>tmp\nB = 2\n"
        assert last_prompt(server) == HEAD + pieces + END
        params = server.engine.requests[0].params
        assert (params.temperature, params.top_k, params.top_p) == (0, 40, 0.9)
        assert (params.min_p, params.max_tokens) == (0, 128)
        # What it has the server cache while nobody types.
        empty = {"input_prefix": "", "input_suffix": "", "prompt": "", "n_predict": 0}
        answer = (await server.post("/infill", **VIM | empty)).json()
        assert answer["content"] == "" and server.engine.requests[1].params.max_tokens == 1


@pytest.mark.parametrize(
    ("more", "kind", "word"),
    [
        ({"n_predict": 2}, "limit", ""),
        ({"stop": [" +"]}, "word", " +"),
        ({"n_indent": 2}, "limit", ""),
        ({}, "eos", ""),
    ],
)
@run
async def test_why_an_answer_ended(more: dict[str, Any], kind: str, word: str) -> None:
    async with code_model(ANSWER + "\nc = 2\n") as server:
        answer = (await server.post("/infill", **BODY | more)).json()
        assert (answer["stop_type"], answer["stopping_word"]) == (kind, word)


@run
async def test_what_does_not_fit_is_left_out() -> None:
    pieces = [{"filename": "f", "text": "first " * 40}, {"filename": "l", "text": "last " * 4}]
    async with code_model(ANSWER, context=256) as server:
        answer = (await server.post("/infill", **BODY, input_extra=pieces, n_predict=32)).json()
        assert answer["truncated"]
        assert last_prompt(server).startswith("<s>first") or "first" in last_prompt(server)
        assert last_prompt(server).endswith("last " * 4 + END)
        long = {"input_prefix": "p" * 9999, "input_suffix": "s" * 9999, "n_predict": 32}
        answer = (await server.post("/infill", **long)).json()
        assert answer["truncated"]
        ids = server.engine.requests[-1].prompt_token_ids
        assert len(ids) == 224 and ids[0] == code_tokenizer().encode("")[0]
        prefix, _, suffix = last_prompt(server).partition("<|fim_suffix|>")
        assert 2 < prefix.count("p") / suffix.count("s") < 4


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"input_extra": [{"filename": "a"}]}, "input_extra[0].text"),
        ({"n_indent": 101}, "n_indent"),
        ({"n_predict": -2}, "n_predict"),
        ({"n_probs": 1}, "n_probs"),
        ({"mirostat": 2}, "mirostat"),
        ({"xtc_probability": 0.5}, "xtc_probability"),
        ({"repeat_penalty": -1}, "repeat_penalty"),
        ({"logit_bias": [[1, 2.0]]}, "logit_bias"),
        ({"input_prefix": None}, "input_prefix"),
    ],
)
@run
async def test_what_is_refused(more: dict[str, Any], param: str) -> None:
    async with code_model() as server:
        answer = await server.post("/infill", **BODY | more)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param
        assert not server.engine.requests


@run
async def test_models_without_the_tokens_and_fields_that_are_missing() -> None:
    async with agents("a") as case:
        answer = await case.server.post("/infill", **BODY)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith("Infill is not supported by this model")
    async with code_model() as server:
        answer = await server.post("/infill", input_prefix="a")
        assert answer.status_code == 400 and "input_suffix" in answer.json()["error"]["message"]


@run
async def test_typical_sampling_counts_where_it_is_listed() -> None:
    async with code_model(ANSWER) as server:
        for samplers, expected in ((None, 0.6), ("kyt", 0.6), (["top_k", "typ_p"], 0.6), ("kt", 1)):
            await server.post("/infill", **BODY, typical_p=0.6, samplers=samplers)
            assert server.engine.requests[-1].params.typical_p == expected


@run
async def test_long_bodies_are_prepared_in_the_process() -> None:
    async with code_model(ANSWER) as server:
        body = BODY | {"input_prefix": "# a comment\n" * 400 + PREFIX}
        assert (await server.post("/infill", **body)).json()["content"] == ANSWER


@run
async def test_the_first_line_that_ends_after_the_time_is_the_last() -> None:
    async with code_model(ANSWER + "\nc = 2\nd = 3\n") as server:
        answer = (await server.post("/infill", **BODY, t_max_predict_ms=1e-6)).json()
        assert (answer["content"], answer["stop_type"]) == (ANSWER + "\n", "limit")
        assert server.engine.aborted
