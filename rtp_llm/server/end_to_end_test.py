# SPDX-License-Identifier: Apache-2.0
"""The real server with the real engine, over a tiny random model."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from example.demo_model.training import sums
from rtp_llm.request.sampling_params import SamplingParams
from rtp_llm.testing.model_folders import byte_level, with_bos, write_folder
from rtp_llm.testing.models.transformers_models import save_model
from rtp_llm.testing.server.serving import events, wait_for
from rtp_llm.testing.server_processes import (
    REAL,
    ROOT,
    Process,
    Stream,
    engines,
    process,
    read_metrics,
    spares,
)

ASK: Any = [{"role": "user", "content": "Hello"}]
FLAGS = ["--dtype", "float32", "--num-threads", "1", "--kv-cache-mem-mb", "16"]
GREEDY = {"temperature": 0.0, "max_tokens": 24}
CONTEXT = 32_000
LONG = 30_000  # tokens that no machine has given before a test does something to their stream


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = with_bos(byte_level())
    # So long an answer has to fit into a small cache.
    sizes = {"max_position_embeddings": CONTEXT, "num_key_value_heads": 1, "head_dim": 16}
    size = tokenizer.get_vocab_size()
    save_model(folder, "qwen3", vocab_size=size, eos_token_id=4, **sizes)
    config = (folder / "config.json").read_text()
    write_folder(folder, tokenizer)
    (folder / "config.json").write_text(config)
    return folder


@pytest.fixture(scope="module", name="server")
def _server(folder: Path) -> Iterator[Process]:
    with process(*FLAGS, command=REAL, model=folder) as server:
        assert server.url
        yield server


@pytest.fixture(name="client")
def _client(server: Process) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_online_equals_offline(client: openai.OpenAI, folder: Path) -> None:
    """Same weights, same text: greedy, and with a seed; chat and completion; with a stop."""
    from rtp_llm import LLM

    with LLM(folder, dtype="float32", num_threads=1, kv_cache_mem_mb=16) as llm:
        for params in (GREEDY, {**GREEDY, "temperature": 0.8, "seed": 7}):
            wanted = SamplingParams(**params, ignore_eos=True)
            offline = llm.generate(["a house", "Once"], wanted, use_tqdm=False)
            body: Any = {"model": "tiny", "extra_body": {"ignore_eos": True}, **params}
            online = client.completions.create(prompt=["a house", "Once"], **body)
            texts = [choice.text for choice in online.choices]
            assert texts == [output.outputs[0].text for output in offline]
            answer = client.chat.completions.create(messages=ASK, **body)
            (chat,) = llm.chat(ASK, wanted, use_tqdm=False)
            assert answer.choices[0].message.content == chat.outputs[0].text
            stop = texts[0][len(texts[0]) // 2 :][:3]
            cut = client.completions.create(prompt="a house", stop=stop, **body).choices[0]
            assert cut.text == texts[0][: texts[0].index(stop)]
            assert cut.finish_reason == "stop"


def test_int8_weights_online_equal_offline(folder: Path) -> None:
    from rtp_llm import LLM

    body: Any = {"model": "tiny", "prompt": "a house", "extra_body": {"ignore_eos": True}, **GREEDY}
    with process(*FLAGS, "--quantization", "int8", command=REAL, model=folder) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        online = client.completions.create(**body).choices[0].text
        assert server.wait_for("quantization int8")
    settings = {"dtype": "float32", "num_threads": 1, "kv_cache_mem_mb": 16}
    with LLM(folder, quantization="int8", **settings) as llm:
        wanted = SamplingParams(**GREEDY, ignore_eos=True)
        (offline,) = llm.generate("a house", wanted, use_tqdm=False)
    assert online == offline.outputs[0].text


def test_streams_equal_whole_answers(client: openai.OpenAI) -> None:
    body: Any = {"model": "tiny", "messages": ASK, "n": 3, "seed": 1, "max_tokens": 40}
    whole = [choice.message.content for choice in client.chat.completions.create(**body).choices]
    texts = ["", "", ""]
    finishes: dict[int, str] = {}
    usage = {"include_usage": True}
    for chunk in client.chat.completions.create(**body, stream=True, stream_options=usage):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                finishes[choice.index] = choice.finish_reason
    assert texts == whole
    assert len(set(texts)) == 3, "three samples with one seed must differ from each other"
    assert set(finishes) == {0, 1, 2}
    assert chunk.usage and chunk.usage.total_tokens > 40


def test_a_prompt_seen_before_is_cached(client: openai.OpenAI) -> None:
    prompt = "Once upon a time there was a small house, and in the house lived a cat. " * 2
    requested: Any = {"model": "tiny", "prompt": prompt, "max_tokens": 2, "temperature": 0}
    first = client.completions.create(**requested)
    second = client.completions.create(**requested)
    assert second.usage and second.usage.prompt_tokens_details
    assert second.usage.prompt_tokens_details.cached_tokens >= 16
    assert first.choices[0].text == second.choices[0].text
    other = client.completions.create(**requested, extra_body={"cache_salt": "another tenant"})
    assert other.usage and other.usage.prompt_tokens_details
    assert other.usage.prompt_tokens_details.cached_tokens == 0


def test_logprobs(client: openai.OpenAI) -> None:
    done = client.completions.create(
        model="tiny", prompt="a house", echo=True, logprobs=2, max_tokens=3, temperature=0
    )
    logprobs = done.choices[0].logprobs
    assert logprobs and logprobs.token_logprobs and logprobs.top_logprobs and logprobs.tokens
    assert logprobs.tokens[0] == "<s>" and logprobs.token_logprobs[0] is None
    assert len(logprobs.tokens) == done.usage.total_tokens  # type: ignore[union-attr]
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])
    generated = list(zip(logprobs.token_logprobs, logprobs.top_logprobs, strict=True))[-3:]
    assert all(value == max(top.values()) for value, top in generated), "greedy takes the likeliest"
    scored = client.completions.create(
        model="tiny", prompt=done.choices[0].text, echo=True, logprobs=0, max_tokens=0
    )
    again = scored.choices[0].logprobs
    assert again and again.token_logprobs and again.tokens
    if again.tokens == logprobs.tokens:
        assert again.token_logprobs[1:] == pytest.approx(logprobs.token_logprobs[1:], abs=1e-3)


def test_echo_of_a_single_token(client: openai.OpenAI) -> None:
    done = client.completions.create(
        model="tiny", prompt=[35], echo=True, logprobs=1, max_tokens=3, temperature=0
    )
    logprobs = done.choices[0].logprobs
    assert logprobs and logprobs.token_logprobs and logprobs.token_logprobs[0] is None
    assert len(logprobs.token_logprobs) == 1 + done.usage.completion_tokens  # type: ignore[union-attr]


def test_sampling_fields_do_something(client: openai.OpenAI) -> None:
    def ask(**fields: Any) -> str:
        extra = {"ignore_eos": True, **fields}
        requested: Any = {"model": "tiny", "prompt": "a house", "max_tokens": 12, "temperature": 0}
        return client.completions.create(**requested, extra_body=extra).choices[0].text

    plain = ask()
    assert ask() == plain
    assert ask(logit_bias={"70": 100}) != plain
    assert ask(temperature=5.0, top_k=1) == plain
    assert ask(temperature=2.0, seed=1) != ask(temperature=2.0, seed=2)
    assert ask(temperature=2.0, seed=1) == ask(temperature=2.0, seed=1)
    assert ask(repetition_penalty=5.0) != plain or len(set(plain)) == len(plain)


def test_engine_refusals_reach_the_client(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=f"{CONTEXT} tokens"):
        client.completions.create(model="tiny", prompt="a house", max_tokens=CONTEXT)


@contextmanager
def stopped_engine(server: Process) -> Iterator[None]:
    """It takes no step meanwhile."""
    (engine,) = engines(server.process.pid)
    os.kill(engine, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(engine, signal.SIGCONT)


def test_a_disconnect_frees_the_blocks(server: Process) -> None:
    url = server.url
    names = ["kv_cache_free_blocks", "running_sequences", "engine_steps_total", "disconnects_total"]

    def numbers() -> list[float]:
        values = read_metrics(url)
        return [values[f"rtp_llm_{name}"] for name in names]

    free, _, steps, left = numbers()
    body = {"prompt": "a house", "max_tokens": LONG, "ignore_eos": True, "stream": True, "n": 4}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as got:
        wait_for(lambda: numbers()[1] == 4, 60)
        next(got.iter_text())
    wait_for(lambda: numbers()[3] == left + 1, 60)
    wait_for(lambda: numbers()[1] == 0 and numbers()[0] >= free, 60)
    assert numbers()[2] < steps + LONG


def test_beams_online_equal_offline(client: openai.OpenAI, server: Process, folder: Path) -> None:
    """The best two of three beams, whole and streamed; a client that goes away frees all."""
    from rtp_llm import LLM, BeamSearchParams

    with LLM(folder, dtype="float32", num_threads=1, kv_cache_mem_mb=16) as llm:
        params = BeamSearchParams(beam_width=3, max_tokens=8, length_penalty=0.5)
        found = llm.beam_search(["a house", "Once"], params)
        prompts = [llm.tokenizer.encode(text) for text in ("a house", "Once")]
    best = [each for output in found for each in output.sequences[:2]]
    given = {"beam_width": 3, "length_penalty": 0.5, "return_token_ids": True}
    body: Any = {"model": "tiny", "prompt": ["a house", "Once"], "max_tokens": 8, "n": 2}
    online = client.completions.create(**body, logprobs=2, extra_body=given)
    assert len(online.choices) == 4
    for number, (choice, wanted) in enumerate(zip(online.choices, best, strict=True)):
        prompt = prompts[number // 2]
        ids = [*prompt, *choice.to_dict()["token_ids"]]
        assert ids[: len(wanted.tokens)] == wanted.tokens
        assert choice.finish_reason == wanted.finish_reason
        assert choice.logprobs is not None and choice.logprobs.token_logprobs is not None
        assert sum(choice.logprobs.token_logprobs) == pytest.approx(wanted.cum_logprob, abs=1e-4)
        assert all(len(top or ()) >= 2 for top in choice.logprobs.top_logprobs or [None])
    texts = dict.fromkeys(range(4), "")
    for chunk in client.completions.create(**body, stream=True, extra_body=given):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert [*texts.values()] == [choice.text for choice in online.choices]

    idle = read_metrics(server.url)
    long = {"prompt": "a house", "use_beam_search": True, "n": 4, "max_tokens": 6000}
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
    content = json.dumps(long | {"ignore_eos": True})
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", content, headers)
    wait_for(lambda: read_metrics(server.url)["rtp_llm_running_sequences"] == 4, 60)
    connection.close()
    wait_for(lambda: read_metrics(server.url)["rtp_llm_running_sequences"] == 0, 60)
    free = "rtp_llm_kv_cache_free_blocks"
    wait_for(lambda: read_metrics(server.url)[free] >= idle[free], 60)


def test_beams_obey_what_samples_obey(client: openai.OpenAI) -> None:
    def texts(**fields: Any) -> list[tuple[str, Any]]:
        given = {"beam_width": 4, "repetition_penalty": 1.3} | fields
        body: Any = {"model": "tiny", "prompt": "a house", "max_tokens": 12, "n": 2}
        found = client.completions.create(**body, extra_body=given).choices
        return [(each.text, each.to_dict()["stop_reason"]) for each in found]

    found = texts(structured_outputs={"choice": ["yes", "perhaps"]})
    assert {text for text, _ in found} <= {"yes", "perhaps"}
    for shape in ({"variable_num_beams": [2, 4, 3]}, {"num_beam_groups": 2}):
        assert len(texts(**shape)) == 2
    stop = texts(ignore_eos=True)[0][0][2:4]
    for included in (False, True):
        fields = {"stop": [stop], "include_stop_str_in_output": included, "ignore_eos": True}
        ended = [text for text, reason in texts(**fields) if reason == stop]
        assert ended
        assert all(text.endswith(stop) == included for text in ended)


def test_thirty_two_streams_run_in_one_batch(server: Process) -> None:
    async def ask() -> None:
        limits = httpx.Limits(max_connections=40)
        async with httpx.AsyncClient(limits=limits, timeout=60) as client:
            body = {"prompt": "Once", "max_tokens": 60, "ignore_eos": True, "stream": True}
            posts = [client.post(f"{server.url}/v1/completions", json=body) for _ in range(32)]
            with stopped_engine(server):  # it finds all of them when it goes on
                waiting = asyncio.gather(*posts)
                while read_metrics(server.url)["rtp_llm_open_requests"] < 32:
                    await asyncio.sleep(0.05)
            answers = await waiting
            assert all(events(answer.text)[-1] == "[DONE]" for answer in answers)

    asyncio.run(ask())
    values = read_metrics(server.url)
    small = values['rtp_llm_batch_size_bucket{le="15.0"}']
    assert values["rtp_llm_batch_size_count"] > small, "no step had 16 sequences or more"


def test_tokenize_there_and_back(server: Process) -> None:
    tokens = httpx.post(f"{server.url}/tokenize", json={"prompt": "a house 😀"}).json()
    assert tokens["count"] == len(tokens["tokens"]) and tokens["max_model_len"] == CONTEXT
    back = httpx.post(f"{server.url}/detokenize", json={"tokens": tokens["tokens"]}).json()
    assert back == {"prompt": "<s>a house 😀"}


def test_drain_with_the_real_engine(folder: Path) -> None:
    with process(*FLAGS, command=REAL, model=folder) as server:
        url = server.url
        (engine,) = engines(server.process.pid)
        with stopped_engine(server):
            stream = Stream(url, begun=False, model="tiny", max_tokens=150)
            wait_for(lambda: read_metrics(url)["rtp_llm_open_requests"] == 1, 60)
            server.process.send_signal(signal.SIGTERM)
            server.wait_for("draining 1 open requests", "stderr")
        assert stream.events()[-1] == "[DONE]"
        assert server.exit_code() == 0
        assert not Path(f"/proc/{engine}").exists()


def test_death_of_the_real_engine(folder: Path) -> None:
    """It is back once, with the same answers; the second death is the last one."""
    body = {"model": "tiny", "prompt": "a house", "ignore_eos": True, **GREEDY}
    flags = (*FLAGS, "--restart-engine", "1")
    with process(*flags, command=REAL, model=folder, FAKE_SPARE="1") as server:
        url = server.url
        wait_for(lambda: spares(server.process.pid), 60)
        (engine,) = engines(server.process.pid)
        before = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()["choices"]
        os.kill(engine, signal.SIGKILL)
        wait_for(lambda: read_metrics(url)["rtp_llm_engine_restarts_total"] == 1, 60)
        wait_for(lambda: httpx.get(f"{url}/health").status_code == 200, 120)
        after = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()["choices"]
        assert after == before
        assert not Path(f"/proc/{engine}").exists()
        (engine,) = engines(server.process.pid)
        stream = Stream(url, model="tiny", max_tokens=LONG)
        os.kill(engine, signal.SIGKILL)
        assert stream.events()[-1]["error"]["code"] == "engine_dead"
        assert server.exit_code() == 1


def test_the_demo_model_adds_what_it_never_saw() -> None:
    pairs = sums.held_out_sums(5)
    with process(*FLAGS, command=REAL, model=ROOT / "example" / "demo_model") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        answers = [
            client.chat.completions.create(
                model="demo_model", messages=[{"role": "user", "content": sums.question(a, b)}]
            )
            for a, b in pairs
        ]
    texts = [answer.choices[0].message.content for answer in answers]
    expected = [sums.answer(a, b) for a, b in pairs]
    assert texts == expected


def test_the_demo_model_calls_a_tool_and_passes_on_what_it_says() -> None:
    schema = {"type": "object", "properties": {"expression": {"type": "string"}}}
    function = {"name": "calculator", "description": "Adds.", "parameters": schema}
    requested: dict[str, Any] = {
        "model": "demo_model",
        "tools": [{"type": "function", "function": function}],
    }
    messages: list[Any] = [{"role": "user", "content": "What is 123 + 456?"}]
    with process(*FLAGS, command=REAL, model=ROOT / "example" / "demo_model") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        create = client.chat.completions.create
        whole = create(**requested, messages=messages).choices[0]
        assert whole.finish_reason == "tool_calls" and whole.message.content is None
        with client.chat.completions.stream(**requested, messages=messages) as stream:
            pieces = [event for event in stream if event.type.startswith("tool_calls.function")]
            streamed = stream.get_final_completion().choices[0]
        assert len(pieces) > 3, "arguments come in pieces"
        (call,), (of_whole,) = streamed.message.tool_calls or (), whole.message.tool_calls or ()
        assert call.function.arguments == of_whole.function.arguments
        assert call.function.name == "calculator"
        assert json.loads(call.function.arguments) == {"expression": "123 + 456"}
        messages += [streamed.message, {"role": "tool", "tool_call_id": call.id, "content": "580"}]
        told = create(**requested, messages=messages).choices[0]
        assert told.message.content == "123 + 456 = 580", "the tool's word, not what is right"
        assert told.finish_reason == "stop" and not told.message.tool_calls
        city: Any = [{"role": "user", "content": "What is the capital of Japan?"}]
        fact = create(**requested, messages=city).choices[0]
        assert fact.message.content == "The capital of Japan is Tokyo."


def test_the_examples_of_the_readme_print_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (ROOT / "README.md").read_text()
    examples = re.findall(r"```python\n(.*?)```\n\nprints\n\n    (.*?)\n", readme, re.DOTALL)
    assert len(examples) == 3
    head = ROOT / "example" / "demo_draft_head"  # as ./dev serve serves it
    drafts = ["--speculative", "eagle3", "--speculative-model", str(head)]
    flags = [*FLAGS, "--served-model-name", "demo", *drafts]
    with process(*flags, command=REAL, model=ROOT / "example" / "demo_model") as server:
        names: dict[str, Any] = {}
        for source, promised in examples:
            exec(source.replace("http://127.0.0.1:8088", server.url), names)
            assert capsys.readouterr().out == f"{promised}\n"


def test_a_model_that_cannot_be_loaded(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    with process(*FLAGS, command=REAL, model=tmp_path) as server:
        assert server.exit_code() == 1
        assert "model.safetensors" in server.wait_for("cannot serve", "stderr")
