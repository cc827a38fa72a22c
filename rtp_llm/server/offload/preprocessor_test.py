# SPDX-License-Identifier: Apache-2.0
"""Long bodies are prepared outside the event loop, with limits on time, memory and number."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rtp_llm.server.offload import fair_slots, inline_limit, lane
from rtp_llm.server.offload import preprocessor as module
from rtp_llm.server.offload.wire import LENGTHS, pack, unpack
from rtp_llm.server.protocols.openai.chat_request import CHAT, prepare_chat
from rtp_llm.server.protocols.openai.tokenization import TOKENIZE, prepare_tokenize
from rtp_llm.server.turn.body_kind import BodyKind, P
from rtp_llm.server.turn.completion import COMPLETION, prepare_completion
from rtp_llm.server.turn.sampling import Limits
from rtp_llm.server.turn.served_model import ServedModel
from rtp_llm.server.types.errors import ApiError
from rtp_llm.testing.server.fake_engine import ready_message
from rtp_llm.testing.server.serving import (
    Served,
    demo_folder,
    demo_tokenizer,
    fake_engine,
    run,
    served,
)
from rtp_llm.text.generation_defaults import GenerationDefaults
from rtp_llm.text.tokenizer import Tokenizer

LONG = "Hello world, " * 1000  # of the texts that go to the process
JSON = {"Content-Type": "application/json"}
CONTEXT = 100_000
# An endless loop as far as any test waits, once a message asks for it.
ENDLESS = (
    "{%- if messages[0].content[:4] == 'loop' -%}{%- for a in range(100000) -%}"
    "{%- for b in range(100000) -%}{%- endfor -%}{%- endfor -%}{%- endif -%}"
    "{{- messages[0].content -}}"
)


def ask(content: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


@asynccontextmanager
async def roomy(**settings: Any) -> AsyncIterator[Served]:
    """A server whose context takes LONG."""
    engine = fake_engine()
    engine.next_ready = ready_message(CONTEXT)
    async with served(engine, **{"prepare_processes": 1, **settings}) as server:
        yield server


async def started(server: Served) -> int:
    """The process, loaded and idle."""
    answer = await server.post("/tokenize", prompt=LONG)
    assert answer.status_code == 200, answer.text
    (pid,) = server.state.preprocessing.pids
    return pid


def model(**fields: Any) -> ServedModel:
    known = {
        "names": ("demo",),
        "usable": ("demo",),
        "tokenizer": demo_tokenizer(),
        "defaults": GenerationDefaults(),
        "limits": Limits(CONTEXT, 512, frozenset({4})),
        "max_sequences": 32,
        "max_tokenize_characters": 2**20,
    }
    return ServedModel(**{**known, **fields})


def sent(kind: BodyKind[P], prepared: P) -> P:
    """As the other process sees it."""
    lengths, head, tail = pack(kind, prepared)
    assert LENGTHS.unpack(lengths) == (len(head), len(tail))
    return unpack(kind, head, tail)


def test_sources_of_grammars_are_sent_once() -> None:
    body = json.dumps({"prompt": ["a", "b", "c"], "guided_regex": "a" * 20_000}).encode()
    prepared = prepare_completion(body, model())
    assert sum(map(len, pack(COMPLETION, prepared))) < 30_000
    assert sent(COMPLETION, prepared) == prepared
    jobs = [*prepared.jobs, replace(prepared.jobs[0], grammar_source=b"other")]
    prepared = replace(prepared, jobs=jobs)
    assert sent(COMPLETION, prepared) == prepared


def test_what_was_prepared_arrives_as_it_was() -> None:
    chat = {**ask("Hello 😀"), "stop": ["x"], "logit_bias": {"7": -1}, "seed": 3, "logprobs": True}
    assert sent(CHAT, prepared := prepare_chat(msgspec.json.encode(chat), model())) == prepared
    requested = {"prompt": ["a b", "c"], "echo": True, "logprobs": 2, "n": 2, "cache_salt": "s"}
    assert (
        sent(COMPLETION, plain := prepare_completion(msgspec.json.encode(requested), model()))
        == plain
    )
    assert plain.response_options.echoes is not None
    assert [echo.text for echo in plain.response_options.echoes] == ["a b", "c"]
    ids = sent(TOKENIZE, counted := prepare_tokenize(b'{"prompt": "Hello"}', model()))
    assert ids == counted


@run
async def test_a_long_body_is_served_as_a_short_one_is() -> None:
    async with roomy() as server:
        assert (await server.chat()).status_code == 200
        assert not server.state.preprocessing.pids
        assert (await server.chat(**ask(LONG))).status_code == 200
        assert server.state.preprocessing.pids
        template = server.state.tokenizer.apply_chat_template(ask(LONG)["messages"])
        ids = server.state.tokenizer.encode(template, add_special_tokens=False)
        assert server.engine.requests[-1].prompt_token_ids == ids
        answer = (await server.complete(prompt=LONG, echo=True, max_tokens=0)).json()
        assert answer["choices"][0]["text"] == LONG
        tokens = (await server.post("/tokenize", prompt=LONG)).json()["tokens"]
        assert tokens == server.state.tokenizer.encode(LONG)
        answer = (await server.post("/detokenize", tokens=tokens[1:])).json()
        assert answer == {"prompt": LONG}


@run
async def test_its_errors_are_the_same() -> None:
    async with served() as server:
        answer = await server.chat(**ask(LONG))
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        answer = await server.chat(model="other", **ask(LONG))
        assert (answer.status_code, answer.json()["error"]["param"]) == (404, "model")
        answer = await server.client.post("/v1/completions", content=b"[" * 5000, headers=JSON)
        assert answer.json()["error"]["code"] == "invalid_json"


@run
async def test_a_request_whose_process_is_killed_is_prepared_again() -> None:
    async with roomy() as server:
        pid = await started(server)
        os.kill(pid, signal.SIGSTOP)
        requested = asyncio.create_task(server.chat(**ask(LONG)))
        waiting = asyncio.create_task(server.complete(prompt=LONG))
        await asyncio.sleep(0.1)
        os.kill(pid, signal.SIGKILL)
        assert (await requested).status_code == (await waiting).status_code == 200
        assert len(server.state.preprocessing.pids) == 1
        assert pid not in server.state.preprocessing.pids


@run
async def test_a_request_that_kills_its_process_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane, "ATTEMPTS", 1)
    async with roomy() as server:
        pid = await started(server)
        os.kill(pid, signal.SIGSTOP)
        requested = asyncio.create_task(server.chat(**ask(LONG)))
        await asyncio.sleep(0.1)
        os.kill(pid, signal.SIGKILL)
        error = (await requested).json()["error"]
        assert error["code"] == "request_too_expensive"
        assert "SIGKILL" in error["message"]
        assert (await server.chat(**ask(LONG))).status_code == 200


@run
async def test_a_template_without_end_ends_at_the_time_limit(tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text(ENDLESS)
    async with roomy(prepare_timeout=2.0, chat_template=str(file)) as server:
        server.state.open(Tokenizer.from_folder(demo_folder(), str(file)))
        requested = asyncio.create_task(server.chat(**ask("loop" + LONG)))
        while not requested.done():
            assert (await server.client.get("/health")).status_code == 200
            await asyncio.sleep(0.01)
        error = requested.result().json()["error"]
        assert (requested.result().status_code, error["code"]) == (400, "request_too_expensive")
        assert "2 s" in error["message"]
        assert (await server.chat(**ask(LONG))).status_code == 200


@run
async def test_a_slow_conversation_and_longer_ones_leave_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inline_limit, "SLOW_RENDER_SECONDS", 0.0)
    async with served() as server:
        assert (await server.chat(**ask("a" * 100))).status_code == 200
        assert not server.state.preprocessing.pids
        assert (await server.chat(**ask("a" * 50))).status_code == 200
        assert not server.state.preprocessing.pids, "a shorter one is tried"
        assert (await server.chat(**ask("a" * 50))).status_code == 200
        assert server.state.preprocessing.pids


@run
async def test_a_template_that_never_ends_for_some_messages_stops_nobody(tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text(ENDLESS)
    async with served(prepare_timeout=2.0, chat_template=str(file)) as server:
        server.state.open(Tokenizer.from_folder(demo_folder(), str(file)))
        assert (await server.chat(**ask("go"))).status_code == 200
        requested = asyncio.create_task(server.chat(**ask("loop")))
        answered = 0
        while not requested.done():
            assert (await server.client.get("/health")).status_code == 200
            answered += 1
            await asyncio.sleep(0.01)
        assert answered > 10, "the loop went on while the process rendered"
        assert requested.result().json()["error"]["code"] == "request_too_expensive"
        assert (await server.chat(**ask("go"))).status_code == 200


@run
async def test_variables_that_a_template_could_count_to_leave_the_event_loop() -> None:
    async with served() as server:
        for variables, inline in (({"enable_thinking": False}, True), ({"rounds": 10**9}, False)):
            answer = await server.chat(chat_template_kwargs=variables)
            assert answer.status_code == 200
            assert (not server.state.preprocessing.pids) == inline


@run
async def test_a_template_of_a_request_is_compiled_and_rendered_in_the_process() -> None:
    async with roomy(trust_request_chat_template=True, prepare_timeout=2) as server:
        assert (await server.chat(chat_template="x")).status_code == 200
        assert server.state.preprocessing.pids
        for a_name, more in (("", {}), ("{{ reasoning_effort }}", {"reasoning_effort": "low"})):
            answer = await server.chat(**ask("loop"), chat_template=a_name + ENDLESS, **more)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (400, "request_too_expensive")
        assert (await server.chat()).status_code == 200


@run
async def test_short_bodies_go_first_and_many_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fair_slots, "MAX_WAITING_BYTES", 8 * len(LONG))
    async with roomy() as server:
        pid = await started(server)
        os.kill(pid, signal.SIGSTOP)
        order: list[str] = []

        async def post(name: str, text: str) -> None:
            assert (await server.post("/tokenize", prompt=text)).status_code == 200
            order.append(name)

        tasks = [asyncio.create_task(post("first", LONG))]
        await asyncio.sleep(0.05)
        for name, text in (("long", LONG * 4), ("short", LONG)):
            tasks.append(asyncio.create_task(post(name, text)))
            await asyncio.sleep(0.05)
        refused = await server.post("/tokenize", prompt=LONG * 4)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
        assert refused.headers["Retry-After"]
        os.kill(pid, signal.SIGCONT)
        await asyncio.gather(*tasks)
        assert order == ["first", "short", "long"]


@run
async def test_a_request_given_up_leaves_no_answer_for_the_next() -> None:
    async with roomy() as server:
        os.kill(await started(server), signal.SIGSTOP)
        requested = asyncio.create_task(server.post("/tokenize", prompt=LONG * 2))
        await asyncio.sleep(0.1)
        requested.cancel()
        answer = (await server.post("/tokenize", prompt=LONG)).json()
        assert answer["tokens"] == server.state.tokenizer.encode(LONG)


@run
async def test_a_grammar_has_a_deadline_and_stops_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with roomy() as server:
        assert (await server.chat(regex="a")).status_code == 200
        assert not server.state.preprocessing.pids
        (pid,) = server.state.preprocessing.grammar_pids
        os.kill(pid, signal.SIGSTOP)
        monkeypatch.setattr(module, "DEADLINE_SECONDS", 0.5)
        requested = asyncio.create_task(server.chat(regex="b"))
        assert (await server.chat(**ask(LONG))).status_code == 200
        assert (await server.chat(regex="a")).status_code == 200, "it is known"
        answers = [await requested, await server.chat(regex="b")]
        for answer in answers:
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, "regex")
            assert "takes more than 0.5 s; make it simpler" in error["message"]
        assert not server.state.preprocessing.grammar_pids, "ended, and not asked again"
        monkeypatch.undo()
        assert (await server.chat(regex="c")).status_code == 200


@run
async def test_a_grammar_that_kills_its_process_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane, "ATTEMPTS", 1)
    async with roomy() as server:
        assert (await server.chat(regex="a")).status_code == 200
        (pid,) = server.state.preprocessing.grammar_pids
        os.kill(pid, signal.SIGSTOP)
        requested = asyncio.create_task(server.chat(regex="b"))
        await asyncio.sleep(0.1)
        os.kill(pid, signal.SIGKILL)
        for answer in (await requested, await server.chat(regex="b")):
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "regex")
            assert "SIGKILL" in answer.json()["error"]["message"]
        assert (await server.chat(regex="c")).status_code == 200


@run
async def test_the_process_has_no_key_and_ends_with_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RTP_LLM_API_KEY", "secret")
    async with served() as server:
        place = Path(f"/proc/{await started(server)}")
        assert b"secret" not in (place / "environ").read_bytes()
        assert "torch" not in (place / "maps").read_text()
    assert not place.exists()


BOUNDS = {
    "messages": {"messages": [{"role": "user", "content": ""}] * 8193},
    "content parts": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 16385}]
    },
    "entries": {**ask("a"), "logit_bias": {str(i): 1 for i in range(4097)}},
    "token ids": {**ask("a"), "stop_token_ids": [1] * 4097},
    "fields": {**ask("a"), **{f"field_{i}": 0 for i in range(256)}},
}


@pytest.mark.parametrize("what", BOUNDS)
@run
async def test_bounds_have_their_numbers(what: str) -> None:
    with pytest.raises(ApiError, match=f"[0-9]+ {what}.*at most [0-9]+") as caught:
        prepare_chat(json.dumps(BOUNDS[what]).encode(), model())
    assert (caught.value.status, caught.value.code) == (400, "too_many")


def test_nesting_has_a_bound() -> None:
    deep: Any = 0
    for _ in range(64):
        deep = [deep]
    with pytest.raises(ApiError, match="at most 64 levels"):
        prepare_chat(json.dumps({**ask("a"), "metadata": deep}).encode(), model())


def test_a_text_to_tokenise_has_a_bound() -> None:
    with pytest.raises(ApiError, match="1001 characters; at most 1000 "):
        prepare_tokenize(
            json.dumps({"prompt": "a" * 1001}).encode(), model(max_tokenize_characters=1000)
        )
