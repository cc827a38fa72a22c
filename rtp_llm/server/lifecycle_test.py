# SPDX-License-Identifier: Apache-2.0
"""Start, drain, death and stop, of the server as a process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from rtp_llm.engine.client.liveness import SILENCE_SECONDS
from rtp_llm.engine.client.process_client import TICK_SECONDS
from rtp_llm.server.http.shutdown import SAME_SIGNAL_SECONDS
from rtp_llm.testing.engine import scripted_engine as script
from rtp_llm.testing.engine.allowed_steps import AllowedSteps
from rtp_llm.testing.server.agent_clients import template_file
from rtp_llm.testing.server.serving import CHAT, TEXT, wait_for
from rtp_llm.testing.server_processes import ROOT, Process, Stream, engines, process, read_metrics

NO_RESTART = ("--restart-engine", "0")


@pytest.fixture(name="steps")
def _steps(tmp_path: Path) -> AllowedSteps:
    """One, after which an answer that has begun goes on once the test allows more."""
    return AllowedSteps(tmp_path, 1)


def test_a_form_that_does_not_go_with_the_one_that_was_found() -> None:
    template = str(template_file())
    with process("--chat-template", template, "--tool-call-parser", "openai") as server:
        assert server.exit_code() == 1
        assert "openai reads channels" in server.wait_for("cannot serve", "stderr")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_serve_and_drain(steps: AllowedSteps, number: signal.Signals) -> None:
    with process(**steps.environment) as server:
        url = server.url
        assert "settings:\n" in server.lines["stdout"]
        shown = [line for line in server.lines["stdout"] if "  (" in line]
        assert len(shown) == 2 and shown[1] == "  port = 0  (flag)\n", "the others are defaults"
        server.wait_for("try it")
        curl = server.wait_for("curl ")
        assert url in curl and '"model":"demo"' in curl
        assert httpx.get(f"{url}/health").json() == {"status": "ready"}
        stream = Stream(url, max_tokens=20)
        server.process.send_signal(number)
        server.wait_for("draining 1 open requests", "stderr")
        assert httpx.get(f"{url}/health").status_code == 503
        assert httpx.get(f"{url}/liveness").status_code == 200
        refused = httpx.post(f"{url}/v1/chat/completions", json=CHAT)
        assert refused.status_code == 503 and refused.headers["retry-after"]
        assert refused.json()["error"]["code"] == "draining"
        steps.allow_all()
        assert stream.events()[-1] == "[DONE]"
        assert server.exit_code() == 0
        server.wait_for("drained: 1 requests finished, 0 cut", "stderr")
        record = server.wait_for(" first_token_seconds=", "stderr")
        assert " status=200 " in record and record.endswith(" completion_tokens=20\n")
        assert "Hello" not in server.stderr
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")


def test_the_drain_is_bounded(steps: AllowedSteps) -> None:
    with process("--shutdown-timeout", "0.2", **steps.environment) as server:
        stream = Stream(server.url, max_tokens=200)
        server.process.send_signal(signal.SIGINT)
        assert server.exit_code() == 0
        last = stream.events()[-1]
        assert last["error"]["code"] == "shutdown"
        server.wait_for("drained: 0 requests finished, 1 cut", "stderr")


def test_a_second_signal_is_quick(steps: AllowedSteps) -> None:
    with process("--shutdown-timeout", "600", **steps.environment) as server:
        stream = Stream(server.url, max_tokens=200)
        # `timeout` and others send it twice at once: it finds both when it wakes up.
        server.stop_at_once()
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGINT)
        server.process.send_signal(signal.SIGCONT)
        server.wait_for("draining", "stderr")
        time.sleep(2 * SAME_SIGNAL_SECONDS)
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        assert server.exit_code() == 128 + signal.SIGTERM
        assert stream.events()[-1]["error"]["code"] == "shutdown"


def test_engine_death(steps: AllowedSteps) -> None:
    with process(**steps.environment) as server:
        url = server.url
        stream = Stream(url, max_tokens=200)
        dying = httpx.post(f"{url}/v1/chat/completions", json={**CHAT, "priority": 99})
        assert dying.status_code == 503
        assert "killed by request 99" in dying.json()["error"]["message"]
        assert httpx.get(f"{url}/health").status_code == 503
        assert httpx.get(f"{url}/liveness").status_code == 503
        assert stream.events()[-1]["error"]["code"] == "engine_dead"
        server.wait_for("exits with code 1", "stderr")
        assert exit_code_after_signal(server) == 1


def exit_code_after_signal(server: Process) -> int:
    """Of one whose engine is dead: it would answer for 3 s only, which a busy machine may miss."""
    server.process.send_signal(signal.SIGTERM)
    return server.exit_code()


def test_an_engine_that_dies_while_the_server_drains(steps: AllowedSteps) -> None:
    with process(FAKE_ENGINE="scripted", **steps.environment) as server:
        url = server.url
        (engine,) = engines(server.process.pid)
        stream = Stream(url, max_tokens=200)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("draining 1 open requests", "stderr")
        os.kill(engine, signal.SIGKILL)
        assert stream.events()[-1]["error"]["code"] == "engine_dead"
        assert server.exit_code() == 1
        server.wait_for("died while the server drained", "stderr")


def test_an_engine_that_does_not_start() -> None:
    with process(FAKE_START_ERROR="no weights for layer 3") as server:
        assert server.exit_code() == 1
        server.wait_for("no weights for layer 3", "stderr")


def test_a_busy_port_is_found_before_the_model_loads() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with process("--port", port) as server:
            assert server.exit_code() == 1
            assert f"127.0.0.1:{port} is in use" in server.wait_for("error: ", "stderr")
            assert not server.lines["stdout"]


def test_json_lines_of_a_server_and_its_engine(steps: AllowedSteps) -> None:
    steps.allow_all()
    flags = ("--log-format", "json", "--log-level", "debug")
    with process(*flags, FAKE_ENGINE="scripted", RTP_LLM_SEEED="1", **steps.environment) as server:
        ready = json.loads(server.wait_for("is ready: ", "stderr"))
        url = ready["url"]
        assert ready["message"].endswith(url) and ready["kv_cache_tokens"] == 63 * 16
        assert ready["chat_template"] == "tokenizer_config.json" and ready["dtype"] == "float32"
        body = {"prompt": [script.RAISE], "max_tokens": 4}
        httpx.post(f"{url}/v1/completions", json=body, timeout=60)
        server.wait_for('"path":"/v1/completions"', "stderr")
        lines = [json.loads(line) for line in server.lines["stderr"]]
        assert not server.lines["stdout"]
        settings = next(line["settings"] for line in lines if "settings" in line)
        assert settings["log_format"] == "json" and settings["restart_engine"] == "3"
        request = next(line for line in lines if line["logger"] == "rtp_llm.access")
        assert request["status"] == 503 and request["message"] == "request"
        engine = [line for line in lines if line["logger"] == "rtp_llm.engine"]
        assert any("ZeroDivisionError: by the script" in line["message"] for line in engine)
        assert any("RTP_LLM_SEEED" in line["message"] for line in lines)


def test_settings_are_printed_with_secrets_masked() -> None:
    with process(RTP_LLM_API_KEY="hidden-key", RTP_LLM_SEEED="1") as server:
        assert server.url
        assert server.wait_for("api_key = ***")
        assert "hidden-key" not in "".join(server.lines["stdout"]) + server.stderr
        assert server.wait_for("RTP_LLM_SEEED is set but is not a setting", "stderr")
        assert httpx.get(f"{server.url}/v1/models").status_code == 401


def test_the_http_process_does_not_import_torch() -> None:
    code = (
        "import sys, rtp_llm.cli, rtp_llm.engine.client.engine_client\n"
        "import rtp_llm.server.lifecycle\n"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr


def test_texts_are_whole() -> None:
    with process() as server:
        stream = Stream(server.url, ignore_eos=False)
        parts = [item["choices"][0]["delta"].get("content", "") for item in stream.events()[:-1]]
        assert "".join(parts) == TEXT


def test_a_killed_engine_process_is_noticed(steps: AllowedSteps) -> None:
    """The real client, and a real engine process that gets SIGKILL while it streams."""
    assert SILENCE_SECONDS + 2 * TICK_SECONDS < 2, "a dead engine shows within 2 s"
    with process(*NO_RESTART, FAKE_ENGINE="scripted", **steps.environment) as server:
        url = server.url
        ready = httpx.get(f"{url}/health")
        assert ready.status_code == 200
        (engine,) = engines(server.process.pid)
        stream = Stream(url, max_tokens=200)
        os.kill(engine, signal.SIGKILL)
        while httpx.get(f"{url}/health").status_code == 200:
            time.sleep(0.01)
        assert stream.events()[-1]["error"]["code"] == "engine_dead"
        assert exit_code_after_signal(server) == 1


def test_an_engine_process_that_had_to_wait_goes_on(steps: AllowedSteps) -> None:
    with process(FAKE_ENGINE="scripted", FAKE_RELAXED_TIMEOUTS="0", **steps.environment) as server:
        url = server.url
        (engine,) = engines(server.process.pid)
        stream = Stream(url, max_tokens=200)
        while stream.status == 503:  # it has to wait already
            stream = Stream(url, max_tokens=200)
        os.kill(engine, signal.SIGSTOP)
        while (health := httpx.get(f"{url}/health")).status_code == 200:
            time.sleep(0.01)
        assert health.json()["status"] == "engine_silent"
        assert httpx.get(f"{url}/liveness").status_code == 200
        refused = httpx.post(f"{url}/v1/completions", json={"prompt": "Hello"})
        assert refused.json()["error"]["code"] == "engine_silent"
        os.kill(engine, signal.SIGCONT)
        steps.allow_all()
        while httpx.get(f"{url}/health").status_code != 200:
            time.sleep(0.01)
        assert stream.events()[-1] == "[DONE]"


def test_a_step_that_hangs_is_noticed(steps: AllowedSteps) -> None:
    """The engine's heart beats on, in a thread of its own; its requests must not hang with it."""
    scripted = {"FAKE_ENGINE": "scripted", **steps.environment}
    with process("--step-timeout", "1", *NO_RESTART, **scripted) as server:
        url = server.url
        stream = Stream(url, max_tokens=200)
        body = {"prompt": [script.SLEEP], "max_tokens": 4}
        hanging = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
        assert hanging.status_code == 503
        assert "a step hangs" in hanging.json()["error"]["message"]
        health = httpx.get(f"{url}/health")
        assert health.status_code == 503
        assert "step_timeout=1 s" in health.json()["reason"]
        assert figure(url, "rtp_llm_step_age_seconds") > 0
        assert stream.events()[-1]["error"]["code"] == "engine_dead"
        assert exit_code_after_signal(server) == 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_ends_its_request_within_a_step(
    steps: AllowedSteps, stream: bool
) -> None:
    """The next step is never allowed here: the request ends without one."""
    steps.allow(int(stream))
    with process(FAKE_ENGINE="scripted", **steps.environment) as server:
        url = server.url
        host, port = url.removeprefix("http://").split(":")
        body = json.dumps({**CHAT, "stream": stream, "ignore_eos": True}).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(head.encode() + body)
            if stream:
                assert connection.recv(10_000), "one step is done, the second waits"
            wait_for(lambda: figure(url, "rtp_llm_running_sequences") == 1, 60)
        wait_for(lambda: 'code="499"' in httpx.get(f"{url}/metrics").text, 60)
        wait_for(lambda: figure(url, "rtp_llm_running_sequences") == 0, 60)
        assert figure(url, "rtp_llm_engine_steps_total") == stream


def figure(url: str, name: str) -> float:
    return read_metrics(url)[name]


@pytest.mark.parametrize("to_the_group", [False, True])
def test_a_clean_stop_leaves_no_process(steps: AllowedSteps, to_the_group: bool) -> None:
    """Also for Ctrl-C, which reaches the engine process, too: it must live through the drain."""
    with process(FAKE_ENGINE="scripted", new_group=True, **steps.environment) as server:
        url = server.url
        (engine,) = engines(server.process.pid)
        stream = Stream(url, max_tokens=200)
        if to_the_group:
            os.killpg(server.process.pid, signal.SIGINT)
        else:
            server.process.send_signal(signal.SIGTERM)
        server.wait_for("draining 1 open requests", "stderr")
        steps.allow_all()
        assert stream.events()[-1] == "[DONE]"
        assert server.exit_code() == 0
        assert not Path(f"/proc/{engine}").exists()
