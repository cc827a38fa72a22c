# SPDX-License-Identifier: Apache-2.0
"""/api/chat and /api/generate: what is asked of the engine, and what is answered."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from rtp_llm.server.protocols.ollama.answers import OllamaChatAnswer, OllamaGenerateAnswer
from rtp_llm.testing.server.agent_clients import CALL, SCHEMA, THOUGHT, agents
from rtp_llm.testing.server.code_model import code_model, last_prompt
from rtp_llm.testing.server.serving import TEXT, run, served

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": SCHEMA},
}
FIGURES = {"total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration"}
NAN = -2  # in a script: logits that are not numbers
FIGURES |= {"eval_count", "eval_duration"}


def lines(text: str) -> list[dict[str, Any]]:
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


@run
async def test_a_chat_is_streamed_unless_it_says_otherwise() -> None:
    async with agents(TEXT) as case:
        streamed = await case.server.post("/api/chat", model="demo", messages=HELLO)
        assert streamed.headers["content-type"] == "application/x-ndjson"
        *parts, last = lines(streamed.text)
        assert "".join(part["message"]["content"] for part in parts) == TEXT
        assert not any(part["done"] or FIGURES & part.keys() for part in parts)
        assert last["done"] and last["done_reason"] == "stop" and last.keys() >= FIGURES
        assert last["message"] == {"role": "assistant", "content": ""}
        assert last["prompt_eval_count"] == len(case.engine.requests[0].prompt_token_ids)
        answer = await case.server.post("/api/chat", model="demo", messages=HELLO, stream=False)
        whole = answer.json()
        msgspec.json.decode(answer.content, type=OllamaChatAnswer)
        assert whole["message"] == {"role": "assistant", "content": TEXT}
        assert whole["eval_count"] == last["eval_count"] > 0
        assert whole["created_at"].endswith("Z") and whole["model"] == "demo"


@run
async def test_options_reach_the_engine() -> None:
    options = {
        "num_predict": 3,
        "temperature": 0.5,
        "top_k": 4,
        "top_p": 0.9,
        "min_p": 0.1,
        "seed": 7.0,
        "repeat_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.4,
        "stop": [" time"],
        "num_ctx": 4096.0,
        "num_gpu": 1,
        "mirostat": 0,
        "typical_p": 0.7,
    }
    async with agents(TEXT) as case:
        body = {"messages": HELLO, "options": options, "keep_alive": "5m"}
        *_, last = lines((await case.server.post("/api/chat", **body)).text)
        params = case.engine.requests[0].params
        assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.5, 4, 0.9, 0.1)
        assert params.typical_p == 0.7
        assert (params.seed, params.repetition_penalty, params.max_tokens) == (7, 1.2, 3)
        assert (params.presence_penalty, params.frequency_penalty) == (0.3, 0.4)
        assert last["done_reason"] == "length" and last["eval_count"] == 3
        del options["num_predict"]
        answer = await case.server.post("/api/chat", **body, stream=False)
        assert answer.json()["message"]["content"] == "Once upon a"
        options |= {"num_predict": -1, "seed": -1, "repeat_last_n": 0}
        await case.server.post("/api/chat", **body)
        params, ids = case.engine.requests[-1].params, case.engine.requests[-1].prompt_token_ids
        assert params.max_tokens == 8192 - len(ids)
        assert (params.seed, params.repetition_penalty, params.presence_penalty) == (None, 1, 0)


@run
async def test_a_call_comes_whole_and_its_result_goes_back_without_an_id() -> None:
    async with agents(THOUGHT + "Let me see." + CALL) as case:
        body: dict[str, Any] = {"messages": HELLO, "tools": [TOOL]}
        parts = lines((await case.server.post("/api/chat", **body)).text)
        calls = [part["message"]["tool_calls"] for part in parts if "tool_calls" in part["message"]]
        ((call,),) = calls
        assert call["function"] == {"index": 0, "name": "add", "arguments": {"a": 1, "b": 2}}
        assert parts[-1]["done_reason"] == "stop"
        said = "".join(part["message"]["content"] for part in parts)
        reasoning_text = "".join(part["message"].get("thinking", "") for part in parts)
        assert (said, reasoning_text) == ("Let me see.", "I should add.")
        whole = (await case.server.post("/api/chat", **body, stream=False)).json()["message"]
        assert (whole["content"], whole["thinking"]) == (said, reasoning_text)
        made = {"role": "assistant", "content": "", "tool_calls": [{"function": call["function"]}]}
        result = {"role": "tool", "content": "3"}
        body["messages"] = [*HELLO, made, result]
        assert (await case.server.post("/api/chat", **body)).status_code == 200
        assert '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}' in case.prompt
        assert "<tool_response>\n3\n</tool_response>" in case.prompt


@run
async def test_thinking_is_turned_off() -> None:
    async with agents(TEXT) as case:
        await case.server.post("/api/chat", messages=HELLO, think=False)
        assert case.prompt.endswith("<think>\n\n</think>\n\n")
        await case.server.post("/api/generate", prompt="Hello", think=False)
        assert case.prompt.endswith("<think>\n\n</think>\n\n")
    async with served() as server:
        answer = await server.post("/api/chat", messages=HELLO, think=True)
        assert answer.status_code == 400 and "does not support thinking" in answer.json()["error"]
        assert (await server.post("/api/chat", messages=HELLO, think=False)).status_code == 200


@run
async def test_answers_obey_a_format() -> None:
    async with agents('{"a": 1}') as case:
        for format in ("json", SCHEMA):
            for path, body in (
                ("/api/chat", {"messages": HELLO}),
                ("/api/generate", {"prompt": "Hello"}),
                ("/api/generate", {"prompt": "Hello", "raw": True}),
            ):
                answer = await case.server.post(path, **body, format=format, stream=False)
                assert answer.status_code == 200, answer.text
                assert case.engine.requests[-1].grammar is not None
        await case.server.post("/api/chat", messages=HELLO, format="")
        assert case.engine.requests[-1].grammar is None


@run
async def test_a_prompt_gets_the_template_unless_it_is_raw() -> None:
    async with agents(TEXT) as case:
        body = {"prompt": "Hello", "system": "Be short."}
        parts = lines((await case.server.post("/api/generate", **body)).text)
        assert "".join(part["response"] for part in parts) == TEXT
        assert case.prompt.startswith(
            "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nH"
        )
        answer = await case.server.post("/api/generate", prompt="Hello", raw=True, stream=False)
        assert answer.json()["response"] == TEXT
        msgspec.json.decode(answer.content, type=OllamaGenerateAnswer)
        assert case.prompt == "<s>Hello"


@run
async def test_a_suffix_fills_in_the_middle() -> None:
    async with code_model(" a + b") as server:
        body = {"prompt": "return", "suffix": "\n", "options": {"num_predict": 20}}
        answer = await server.post("/api/generate", **body, stream=False)
        assert answer.json()["response"] == " a + b"
        assert last_prompt(server) == "<s><|fim_prefix|>return<|fim_suffix|>\n<|fim_middle|>"
        shown = (await server.post("/api/show", model="demo")).json()
        assert "insert" in shown["capabilities"] and ".Suffix" in shown["template"]
    async with served() as server:
        answer = await server.post("/api/generate", prompt="a", suffix="b")
        assert answer.status_code == 400 and "fill in the middle" in answer.json()["error"]


@run
async def test_nothing_to_say_loads_the_model() -> None:
    async with agents() as case:
        for path, body in (
            ("/api/generate", {}),
            ("/api/generate", {"keep_alive": 0}),
            ("/api/chat", {"messages": []}),
            ("/api/chat", {"keep_alive": -1}),
        ):
            answer = (await case.server.post(path, **body)).json()
            assert (answer["done"], answer["done_reason"]) == (True, "load")
        assert not case.engine.requests


@run
async def test_logprobs() -> None:
    async with agents("Once upon") as case:
        body = {"messages": HELLO, "logprobs": True, "top_logprobs": 2}
        parts = lines((await case.server.post("/api/chat", **body)).text)
        entries = [entry for part in parts for entry in part.get("logprobs", ())]
        assert len(entries) == parts[-1]["eval_count"]
        assert [len(entry["top_logprobs"]) for entry in entries] == [2] * len(entries)
        assert b"".join(bytes(entry["bytes"]) for entry in entries[:-1]) == b"Once upon"
        answer = await case.server.post("/api/generate", prompt="Hi", logprobs=True, stream=False)
        assert "top_logprobs" not in answer.json()["logprobs"][0]


@run
async def test_an_answer_that_was_begun_is_gone_on_with() -> None:
    async with agents(TEXT) as case:
        begun = {"role": "assistant", "content": "Once"}
        await case.server.post("/api/chat", messages=[*HELLO, begun])
        assert case.prompt.endswith("<|im_start|>assistant\nOnce")


CALLED = {"function": {"name": "f"}}
REFUSED: list[tuple[str, dict[str, Any], int, str]] = [
    ("chat", {"messages": HELLO, "model": "other"}, 404, "model 'other' not found"),
    ("chat", {"messages": [{"role": "user", "images": ["x"]}]}, 400, "Only text parts"),
    ("chat", {"messages": [{"role": "king"}]}, 400, "messages[0].role"),
    (
        "chat",
        {"messages": [{"role": "user", "tool_calls": [{"function": {"name": "f"}}]}]},
        400,
        "",
    ),
    ("chat", {"messages": [{"role": "system", "content": ""}]}, 400, "nobody says anything"),
    ("chat", {"messages": HELLO, "format": "yaml"}, 400, "format"),
    ("chat", {"messages": HELLO, "format": {"type": "x"}}, 400, "format"),
    ("chat", {"messages": HELLO, "think": "much"}, 400, "think"),
    ("chat", {"messages": HELLO, "tools": [TOOL, TOOL]}, 400, "tools[1].function.name"),
    ("chat", {"messages": HELLO, "top_logprobs": 3}, 400, "top_logprobs"),
    ("chat", {"messages": HELLO, "logprobs": True, "top_logprobs": 21}, 400, "between 0 and 20"),
    ("chat", {"messages": HELLO, "options": {"temperature": -1}}, 400, "options.temperature"),
    ("chat", {"messages": HELLO, "options": {"temperature": "x"}}, 400, "options.temperature"),
    ("chat", {"messages": HELLO, "options": {"repeat_penalty": 0}}, 400, "options.repeat_penalty"),
    ("chat", {"messages": HELLO, "options": {"mirostat": 1}}, 400, "options.mirostat"),
    ("chat", {"messages": HELLO, "options": {"tfs_z": 0.5}}, 400, "options.tfs_z"),
    ("chat", {"messages": HELLO, "options": {"typical_p": 2}}, 400, "options.typical_p"),
    (
        "chat",
        {"messages": HELLO, "options": {"repeat_last_n": 8, "repeat_penalty": 1.1}},
        400,
        "options.repeat_last_n",
    ),
    ("chat", {"messages": [{"role": "user", "content": "a" * 9000}]}, 400, "context is 1000"),
    ("generate", {"prompt": "a", "raw": True, "system": "b"}, 400, "raw"),
    ("generate", {"prompt": "a", "template": "{{ .Prompt }}"}, 400, "template"),
    ("generate", {"prompt": "a", "context": [1, 2]}, 400, "/api/chat"),
    ("generate", {"prompt": "a", "images": ["x"]}, 400, "Only text parts"),
    ("generate", {"prompt": "a" * 9000, "raw": True}, 400, "context is 1000"),
    ("generate", {"prompt": 1}, 400, "prompt"),
    ("show", {"model": "other"}, 404, "not found"),
    ("show", {"name": 1}, 400, "name"),
    ("show", {"name": "x" * 70000}, 413, "65536"),
    ("pull", {"model": "demo"}, 404, "rtp-llm serve FOLDER"),
    ("embed", {"input": 3}, 400, "input: expected"),
]


@pytest.mark.parametrize(("path", "body", "status", "said"), REFUSED)
@run
async def test_errors_have_ollamas_shape(
    path: str, body: dict[str, Any], status: int, said: str
) -> None:
    async with agents(context=1000) as case:
        answer = await case.server.post(f"/api/{path}", **body)
        assert answer.status_code == status, answer.text
        assert [*answer.json()] == ["error"] and said in answer.json()["error"]
        assert not case.engine.requests


@run
async def test_unknown_options_are_named() -> None:
    body = {"messages": HELLO, "wish": 1, "options": {"magic": 1, "num_ctx": 99999, "other": None}}
    async with agents(TEXT) as case:
        answer = await case.server.post("/api/chat", **body)
        named = answer.headers["x-rtp-llm-ignored-fields"]
        assert named == "wish, options.magic, options.num_ctx"
    async with agents(TEXT, strict_fields=True) as case:
        answer = await case.server.post("/api/chat", messages=HELLO, options={"magic": 1})
        assert answer.status_code == 400 and "options.magic" in answer.json()["error"]


@run
async def test_a_stream_that_breaks_ends_with_an_error_line() -> None:
    async with agents(TEXT) as case:
        says = case.engine.script
        case.engine.script = lambda request, index: [*says(request, index)[:3], NAN]
        *parts, last = lines((await case.server.post("/api/chat", messages=HELLO)).text)
        assert parts and [*last] == ["error"]
        answer = await case.server.post("/api/chat", messages=HELLO, stream=False)
        assert answer.status_code == 500 and [*answer.json()] == ["error"]


@run
async def test_keys_and_methods_have_ollamas_shape() -> None:
    async with agents(api_key="secret") as case:
        client = case.server.client
        for answer, status in (
            (await client.get("/api/tags"), 401),
            (await client.post("/api/chat", json={"messages": HELLO}), 401),
            (await client.get("/api/chat", headers={"authorization": "Bearer secret"}), 405),
        ):
            assert answer.status_code == status
            assert isinstance(answer.json()["error"], str)
        answer = await client.get("/api/tags", headers={"authorization": "Bearer secret"})
        assert answer.json()["models"][0]["name"] == "demo:latest"
