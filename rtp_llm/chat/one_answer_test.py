# SPDX-License-Identifier: Apache-2.0
"""`rtp-llm run`."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from rtp_llm import cli
from rtp_llm.testing.server.raw_server import (
    DONE,
    RawServer,
    Request,
    answer_json,
    chat_events,
    event,
    raw_server,
    stream_head,
)
from rtp_llm.testing.server_processes import environment


def answer(request: Request) -> list[bytes]:
    """What was asked, in capital letters; `refuse` gets 400, `many` never ends."""
    content = request.content
    if "prompt" in content:
        choice = {"text": content["prompt"].upper(), "finish_reason": "length"}
        return [stream_head(), event({"choices": [choice]}), DONE]
    text = content["messages"][-1]["content"]
    if text == "refuse":
        return [answer_json({"error": {"message": "too long"}}, "400 Bad Request")]
    return chat_events(*(["many\n"] * 20_000 if text == "many" else [text.upper()]))


def run(
    server: RawServer, *words: str, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rtp_llm", "run", server.url, "--model", "m", *words]
    return subprocess.run(command, env=environment(), input=stdin, capture_output=True, text=True)


def test_prompts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with raw_server(answer) as server:
        common = ["run", server.url, "--model", "m"]
        assert cli.main([*common, "--top-k", "3", "one", "--seed", "4", "two", "--stop", "x"]) == 0
        assert cli.main([*common, "--raw", "once", "--max-tokens", "2", "--ignore-eos"]) == 0
        monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe\n"))
        assert cli.main([*common, "--system", "Be brief"]) == 0
    assert capsys.readouterr().out == "ONE TWO\nONCE\nFROM A PIPE\n"
    first, second, third = (request.content for request in server.requests)
    assert first["messages"] == [{"role": "user", "content": "one two"}]
    assert (first["top_k"], first["seed"], first["stop"]) == (3, 4, ["x"])
    assert second["max_tokens"] == 2 and second["ignore_eos"] is True
    assert server.requests[1].line == "POST /v1/completions HTTP/1.1"
    assert third["messages"][0] == {"role": "system", "content": "Be brief"}


def test_errors(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    with raw_server(answer) as server:
        common = ["run", server.url, "--model", "m"]
        assert cli.main([*common, "refuse"]) == 1
        assert cli.main(common) == 2
        assert cli.main([*common, "--raw", "--system", "s", "x"]) == 2
        with pytest.raises(SystemExit) as stopped:
            cli.main([*common, "--temp", "1", "x"])
    assert stopped.value.code == 2
    out, errors = capsys.readouterr()
    assert out == ""
    for says in (
        "error: too long (HTTP 400)\n",
        "error: PROMPT: give one, or pipe it in\n",
        "error: --system: there is no system prompt with --raw",
        "error: --temp: ",
    ):
        assert f"rtp-llm run: {says}" in errors


def test_as_a_process() -> None:
    """What is piped in follows the prompt; the answer is all that standard output has."""
    with raw_server(answer) as server:
        done = run(server, "sum up:", stdin="a text\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "SUM UP:\n\nA TEXT\n", "")


def test_a_reader_that_leaves() -> None:
    with raw_server(answer) as server:
        command = (
            f"{sys.executable} -m rtp_llm run {server.url} --model m many < /dev/null | head -1"
        )
        shell = ["bash", "-c", f"{command}; echo ${{PIPESTATUS[0]}}"]
        done = subprocess.run(shell, env=environment(), capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("many\n141\n", "")
