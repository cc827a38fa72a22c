# SPDX-License-Identifier: Apache-2.0
"""Fields that other engines' clients send or read, under those engines' names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rtp_llm.testing.model_folders import byte_level, with_bos, write_folder
from rtp_llm.testing.server.fake_engine import EOS, FakeEngine, say
from rtp_llm.testing.server.serving import (
    TEXT,
    demo_tokenizer,
    events,
    fake_engine,
    run,
    served,
)
from rtp_llm.text.tokenizer import Tokenizer

RULES = """{% for m in messages %}{% if m.role in ('system', 'user', 'assistant', 'critic') -%}
<|{{ m.role }}|>{{ m.content }}
{% endif %}{% endfor %}{% for d in documents or [] %}[{{ d.title }}: {{ d.text }}]{% endfor %}"""


def encode(text: str) -> list[int]:
    return demo_tokenizer().encode(text, add_special_tokens=False)


def with_template(template: str, folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(write_folder(folder, with_bos(byte_level()), template=template))


async def stop_reasons(server: Any, **body: Any) -> list[str | int | None]:
    """Of a chat and a completion, whole and streamed: all four agree."""
    found = []
    for ask in (server.chat, server.complete):
        (choice,) = (await ask(**body)).json()["choices"]
        chunks = events((await ask(**body, stream=True)).text)[:-1]
        last = [each for item in chunks for each in item["choices"] if each["finish_reason"]]
        assert [each["stop_reason"] for each in last] == [choice["stop_reason"]]
        assert last[0]["finish_reason"] == choice["finish_reason"]
        found.append(choice["stop_reason"])
    return found


@run
async def test_stop_reason_is_the_stop_that_the_request_named() -> None:
    house = encode(" house")[-1]
    async with served(fake_engine("in a house.")) as server:
        assert await stop_reasons(server) == [None, None]
        assert await stop_reasons(server, max_tokens=1) == [None, None]
        assert await stop_reasons(server, stop=["ou", "x"]) == ["ou", "ou"]
        assert await stop_reasons(server, stop_token_ids=[house]) == [house, house]
        # The model's own end is no stop of the request, unless it was taken from the model.
        assert await stop_reasons(server, stop_token_ids=[EOS]) == [None, None]
        ids = {"stop_token_ids": [EOS], "ignore_eos": True}
        assert await stop_reasons(server, **ids) == [EOS, EOS]
        answer = (await server.complete(echo=True, max_tokens=0)).json()
        assert answer["choices"][0]["stop_reason"] is None


@run
async def test_stop_regex_ends_an_answer() -> None:
    async with served(fake_engine("Thought: I see 42 houses. Observation: none")) as server:
        for pattern in (r"\nObs|Obs\w+:", ["(?i)OBSERVATION:", "never"]):
            answer = (await server.chat(stop_regex=pattern)).json()["choices"][0]
            assert answer["message"]["content"] == "Thought: I see 42 houses. "
            assert answer["finish_reason"] == "stop"
            first = pattern if isinstance(pattern, str) else pattern[0]
            assert answer["stop_reason"] == first
        assert await stop_reasons(server, stop_regex=r"\d{2}", stop="houses") == [r"\d{2}"] * 2
        body = {"stop_regex": r"\d+", "include_stop_str_in_output": True}
        text = (await server.complete(**body)).json()["choices"][0]["text"]
        assert text == "Thought: I see 4"
        assert server.engine.aborted
        for wrong in ("(", "a*", "a$", r"(a)\1", "((a{9}){9}){9}"):
            error = (await server.chat(stop_regex=wrong)).json()["error"]
            assert error["param"] == "stop_regex" and repr(wrong) in error["message"]


@run
async def test_a_stop_counts_when_it_is_complete_after_min_tokens() -> None:
    tokens = encode(TEXT)
    upon = next(n for n in range(len(tokens)) if demo_tokenizer().decode(tokens[:n]) == "Once upon")
    async with served() as server:
        body = {"stop": ["Once", "upon a"], "min_tokens": upon}
        answer = (await server.chat(**body)).json()["choices"][0]
        assert (answer["message"]["content"], answer["stop_reason"]) == ("Once ", "upon a")
        body = {"stop": ["Once", "upon"], "min_tokens": upon}
        answer = (await server.chat(**body)).json()["choices"][0]
        assert (answer["message"]["content"], answer["stop_reason"]) == (TEXT, None)


@pytest.mark.parametrize("side", [None, "left", "right"])
@run
async def test_truncation_side(side: str | None) -> None:
    async with served() as server:
        kept = slice(5) if side == "right" else slice(-5, None)
        for prompt in ("one two three four five", "x" * 300_000):
            body = {"prompt": prompt, "truncate_prompt_tokens": 5, "truncation_side": side}
            assert (await server.complete(**body, max_tokens=1)).status_code == 200
            if len(prompt) < 100:
                ids = demo_tokenizer().encode(prompt)
                assert server.engine.requests[-1].prompt_token_ids == ids[kept]
            else:
                assert len(server.engine.requests[-1].prompt_token_ids) == 5
        ids = list(range(5, 25))
        body = {"prompt": ids, "truncate_prompt_tokens": -1, "truncation_side": side}
        await server.complete(**body, max_tokens=250)
        kept = slice(6) if side == "right" else slice(-6, None)
        assert server.engine.requests[-1].prompt_token_ids == ids[kept]
        wrong = await server.complete(truncation_side="middle")
        assert wrong.json()["error"]["param"] == "truncation_side"


@run
async def test_stream_options_belong_to_streams() -> None:
    async with served() as server:
        for ask in (server.chat, server.complete):
            for stream in ({}, {"stream": False}, {"stream": None}):
                response = await ask(stream_options={"include_usage": False}, **stream)
                assert response.status_code == 400
                assert response.json()["error"]["param"] == "stream_options"
            for empty in (None, {}):
                assert (await ask(stream_options=empty)).status_code == 200


@run
async def test_kv_transfer_params_are_refused() -> None:
    async with served() as server:
        for ask in (server.chat, server.complete):
            assert (await ask(kv_transfer_params={})).status_code == 200
            response = await ask(kv_transfer_params={"do_remote_decode": True})
            assert response.status_code == 400
            assert response.json()["error"]["param"] == "kv_transfer_params"


@run
async def test_response_compat_writes_what_vllm_always_sends() -> None:
    async with served(response_compat="vllm") as server:
        chat, text = (await server.chat()).json(), (await server.complete()).json()
        body = {"prompt_logprobs": 1, "return_token_ids": True, "max_tokens": 1}
        requested = (await server.chat(**body)).json()
        assert requested["prompt_token_ids"] and requested["prompt_logprobs"][1]
        assert requested["choices"][0]["token_ids"]
    for answer in (chat, text):
        for name in ("service_tier", "system_fingerprint", "kv_transfer_params"):
            assert answer.pop(name) is None
    assert chat["prompt_logprobs"] is chat["prompt_token_ids"] is None
    (choice,) = chat["choices"]
    assert choice["token_ids"] is None and choice["message"]["content"] == TEXT
    for name in ("annotations", "audio", "function_call", "reasoning", "refusal"):
        assert choice["message"][name] is None
    (choice,) = text["choices"]
    for name in ("token_ids", "prompt_logprobs", "prompt_token_ids"):
        assert choice[name] is None


@pytest.mark.parametrize("echo", [False, True])
@run
async def test_a_completions_own_token_comes_first_in_top_logprobs(echo: bool) -> None:
    engine = fake_engine("a house")
    async with served(engine) as server:
        body = {"logprobs": 2, "echo": echo, "return_tokens_as_token_ids": True}
        shown = (await server.complete(**body)).json()["choices"][0]["logprobs"]
        named = (await server.complete(**body, logprob_token_ids=[9, 8])).json()
    for token, top in zip(shown["tokens"], shown["top_logprobs"], strict=True):
        assert top is None or next(iter(top)) == token
    last = named["choices"][0]["logprobs"]["top_logprobs"][-1]
    assert list(last) == [f"token_id:{EOS}", "token_id:9", "token_id:8"][: len(last)]


@run
async def test_tokens_are_named_by_ids_where_the_server_says_so() -> None:
    async with served(return_tokens_as_token_ids=True) as server:
        for ask, find in (
            (server.chat, lambda shown: shown["content"][0]["token"]),
            (server.complete, lambda shown: shown["tokens"][0]),
        ):
            body: dict[str, Any] = {"logprobs": True if ask == server.chat else 1}
            shown = (await ask(**body)).json()["choices"][0]["logprobs"]
            assert find(shown) == f"token_id:{encode(TEXT)[0]}"
            body["return_tokens_as_token_ids"] = False
            shown = (await ask(**body)).json()["choices"][0]["logprobs"]
            assert find(shown) == demo_tokenizer().token_text(encode(TEXT)[0])


@run
async def test_all_alternatives_where_the_server_allows_them() -> None:
    async with served(max_logprobs=-1) as server:
        answer = await server.chat(logprobs=True, top_logprobs=-1, max_tokens=1)
        assert server.engine.requests[-1].params.logprobs == 512
        top = answer.json()["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        assert len(top) == 512
        await server.complete(logprobs=-1, max_tokens=1)
        assert server.engine.requests[-1].params.logprobs == 512
    async with served() as server:
        error = (await server.chat(logprobs=True, top_logprobs=-1)).json()["error"]
        assert "512 tokens) must be between 0 and 20 (see --max-logprobs)" in error["message"]


@run
async def test_custom_roles_where_the_template_shows_them(tmp_path: Path) -> None:
    engine = FakeEngine(say(demo_tokenizer(), "Once"))
    messages = [{"role": "user", "content": "Hello"}, {"role": "critic", "content": "Too short."}]
    async with served(engine, with_template(RULES, tmp_path)) as server:
        assert (await server.chat(messages=messages)).status_code == 200
        sent = demo_tokenizer().decode(server.engine.requests[-1].prompt_token_ids)
        assert "<|critic|>Too short." in sent
        for role, reason in (("judge", "does not show messages"), ("a b", "must be a word")):
            response = await server.chat(messages=[messages[0], {**messages[1], "role": role}])
            assert response.status_code == 400
            error = response.json()["error"]
            assert error["param"] == "messages[1].role" and reason in error["message"]


@run
async def test_documents_where_the_template_reads_them(tmp_path: Path) -> None:
    documents = [{"title": "Houses", "text": "They are small."}]
    engine = FakeEngine(say(demo_tokenizer(), "Once"))
    async with served(engine, with_template(RULES, tmp_path), model=str(tmp_path)) as server:
        assert (await server.chat(documents=documents)).status_code == 200
        sent = demo_tokenizer().decode(server.engine.requests[-1].prompt_token_ids)
        assert "[Houses: They are small.]" in sent
        assert (await server.chat(documents=[])).status_code == 200
        body = {"messages": [{"role": "user", "content": "?"}], "documents": documents}
        ids = (await server.post("/tokenize", **body)).json()["tokens"]
        assert "They are small." in demo_tokenizer().decode(ids)
    async with served() as server:
        response = await server.chat(documents=documents)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "documents"
