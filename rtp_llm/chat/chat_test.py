# SPDX-License-Identifier: Apache-2.0
"""`rtp-llm chat`, in this process from pipes, and as a process on a terminal."""

from __future__ import annotations

import io
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rtp_llm import cli
from rtp_llm.chat import server_child
from rtp_llm.chat.conversation import CommandProblem, Conversation, run_command
from rtp_llm.chat.printing import AnswerPrinter
from rtp_llm.chat.questions import Questions
from rtp_llm.chat.target import is_url
from rtp_llm.client.openai import Delta
from rtp_llm.testing.server.raw_server import (
    DONE,
    Request,
    answer_json,
    chat_events,
    event,
    raw_server,
    stream_head,
)
from rtp_llm.testing.server.serving import demo_folder, fake_engine, listening, wait_for
from rtp_llm.testing.server_processes import FAKE, TIMEOUT, environment

MODELS = answer_json({"data": [{"id": "first"}, {"id": "second"}]})


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RTP_LLM_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def chat(monkeypatch: pytest.MonkeyPatch, text: str, *words: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    return cli.main(["chat", *words])


def count(request: Request) -> list[bytes]:
    """Says how many messages there are; a server with two models."""
    if request.line.startswith("GET"):
        return [MODELS]
    return chat_events(f"{len(request.content['messages'])} messages")


def test_a_conversation_from_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = 'Hello\n\n/set temperature 0\n"""one\ntwo"""\nthree\\\nfour\n/retry\n'
    lines += "/clear\nagain\n/bye\nno\n"
    with raw_server(count) as server:
        assert chat(monkeypatch, lines, server.url, "--system", "Be brief", "--seed", "7") == 0
    said = [each for each in capsys.readouterr().out.splitlines() if "messages" in each]
    assert said == [f"{number} messages" for number in (2, 4, 6, 6, 2)]
    requested = [request.content for request in server.requests[1:]]
    assert requested[0] == {
        "model": "first",
        "messages": [
            {"role": "system", "content": "Be brief"},
            {"role": "user", "content": "Hello"},
        ],
        "seed": 7,
        "stream": True,
    }
    assert requested[1]["temperature"] == 0.0
    assert requested[1]["messages"][-2:] == [
        {"role": "assistant", "content": "2 messages"},
        {"role": "user", "content": "one\ntwo"},
    ]
    assert requested[2]["messages"][-1]["content"] == "three\nfour"
    assert requested[3]["messages"] == requested[2]["messages"]


def test_keys_and_models(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of-openai")
    with raw_server(count) as server:
        assert chat(monkeypatch, "x\n", server.url, "--model", "second") == 0
        assert chat(monkeypatch, "x\n", f"{server.url}/v1", "--api-key", "given") == 0
    keys = [request.headers["authorization"] for request in server.requests]
    assert keys == ["Bearer of-openai", "Bearer given", "Bearer given"]
    models = [request.content["model"] for request in server.requests if request.body]
    assert models == ["second", "first"]


def test_an_answer_that_fails_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(request: Request) -> list[bytes]:
        last = request.content["messages"][-1]["content"] if request.body else ""
        refusal = answer_json({"error": {"message": "too long"}}, "400 Bad Request")
        return [refusal] if last == "bad" else count(request)

    with raw_server(refuse) as server:
        assert chat(monkeypatch, "bad\ngood\n/wrong\n", server.url) == 1
    printed = capsys.readouterr()
    assert printed.out.split("\n")[-2] == "1 messages"
    assert "error: too long (HTTP 400)\n" in printed.err
    assert "no command /wrong; /help lists them" in printed.err


def test_reasoning_is_left_out_of_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deltas = [{"reasoning": "well"}, {"content": "\n\n"}, {"content": "so"}]
    parts = [event({"choices": [{"delta": delta}]}) for delta in deltas]
    with raw_server(lambda _: [stream_head(), *parts, DONE]) as server:
        assert chat(monkeypatch, "x\n", server.url, "--model", "m") == 0
    assert capsys.readouterr().out == "so\n"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["http://127.0.0.1:9"], 1, "no server answers at http://127.0.0.1:9/v1: "),
        (["http://127.0.0.1:9", "--dtype", "float16"], 1, "--dtype is for a model that is loaded"),
        (["folder", "--dtype", "float17"], 2, "--dtype: 'float17' is not one of"),
    ],
)
def test_errors(
    words: list[str],
    code: int,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert chat(monkeypatch, "", *words) == code
    assert capsys.readouterr().err.startswith(f"rtp-llm chat: error: {says}")


def test_the_local_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with raw_server(count) as server:
        monkeypatch.setenv("RTP_LLM_PORT", server.url.rpartition(":")[2])
        assert chat(monkeypatch, "x\n") == 0
    assert capsys.readouterr().out == "1 messages\n"
    monkeypatch.setenv("RTP_LLM_PORT", "9")
    assert chat(monkeypatch, "x\n") == 1
    assert "or start one with: rtp-llm serve FOLDER" in capsys.readouterr().err


def test_a_folder_is_served_by_a_child_that_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[str]] = []

    def fake(_serve: str, *words: str) -> list[str]:
        commands.append([*FAKE, *words])
        return commands[-1]

    monkeypatch.setattr(server_child, "bound_command", fake)
    monkeypatch.setenv("RTP_LLM_API_KEY_FILE", "/nowhere")
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FAKE_TEXT", "from a child")
    assert chat(monkeypatch, "x\n", str(demo_folder()), "--num-threads", "1") == 0
    assert capsys.readouterr().out == "from a child\n"
    assert commands[0][-2:] == ["--num-threads", "1"] and "--log-level" in commands[0]
    ends = [sys.executable, "-c", "raise SystemExit(3)"]
    monkeypatch.setattr(server_child, "bound_command", lambda *_: ends)
    assert chat(monkeypatch, "x\n", str(demo_folder())) == 1
    says = "rtp-llm chat: error: the model was not loaded (exit code 3)\n"
    assert capsys.readouterr().err.endswith(says)


class Terminal:
    """A process whose terminal is a pseudo-terminal of this one."""

    def __init__(self, *words: str) -> None:
        self.shown = b""
        self._own, theirs = pty.openpty()
        command = ["setsid", "--ctty", sys.executable, "-m", "rtp_llm", *words]
        environ = {**environment(), "TERM": "dumb"}
        self.process = subprocess.Popen(
            command,
            env=environ,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)

    def type(self, text: str) -> None:
        self.shown = b""
        os.write(self._own, text.encode())

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + TIMEOUT
        while text.encode() not in self.shown:
            assert time.monotonic() < deadline, self.shown
            if select.select([self._own], [], [], 0.1)[0]:
                self.shown += os.read(self._own, 4096)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._own)


def test_on_a_terminal(tmp_path: Path) -> None:
    """Ctrl-C stops an answer, here and in the engine; another one and Ctrl-D."""
    engine = fake_engine("word " * 200, step_seconds=0.01)
    with listening(engine) as url:
        terminal = Terminal("chat", url)
        try:
            terminal.wait_for(">>> ")
            terminal.type("talk\r")
            terminal.wait_for("word word ")
            terminal.type("\x03")
            terminal.wait_for("\n>>> ")
            wait_for(lambda: engine.aborted, TIMEOUT)
            terminal.type("\x03")
            terminal.wait_for("Ctrl-D or /exit ends the conversation.\r\n>>> ")
            terminal.type("/set\r")
            terminal.wait_for("Sampling is the server's.\r\n>>> ")
            terminal.type("\x04")
            assert terminal.process.wait(TIMEOUT) == 0
        finally:
            terminal.close()
    history = tmp_path / "rtp-llm" / "chat_history"
    assert history.read_text().splitlines() == ["talk", "/set"]
    assert history.stat().st_mode & 0o777 == 0o600


def test_quotes_may_end_with_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, wanted in (('"""one"""\n', "one"), ('"""\none\n two\n', "one\n two")):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        assert Questions().next() == wanted


def test_commands() -> None:
    conversation = Conversation("old", {"top_k": 3})
    for line, says in (
        ("/nothing", "no command /nothing"),
        ("/retry", "there is no question yet"),
        ("/set temprature 1", "temprature: no such parameter"),
        ("/set top_k x", "top_k: 'x' is not a whole number"),
    ):
        with pytest.raises(CommandProblem, match=says):
            run_command(line, conversation)
    assert run_command("/set max-tokens 8", conversation).says == "top_k = 3, max_tokens = 8"
    assert run_command("/set top_k", conversation).says == "max_tokens = 8"
    conversation.ask("x")
    conversation.take("")
    assert conversation.turns == []
    assert run_command("/retry", conversation).asks and conversation.turns[0]["content"] == "x"
    run_command("/system new", conversation)
    wanted: list[Any] = [{"role": "system", "content": "new"}]
    assert conversation.messages() == wanted
    run_command("/system", conversation)
    assert conversation.messages() == []
    assert "/retry" in run_command("/help", conversation).says
    assert run_command("/exit", conversation).ends


def test_an_answer_cannot_rule_the_terminal() -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Screen()
    printer = AnswerPrinter(screen, screen)
    for delta in (
        Delta(reasoning="h\x1b[2Jm"),
        Delta(text="\n\n"),
        Delta(text="a\x1b]0;x\x07\tb\n"),
    ):
        printer.show(delta)
    printer.end()
    assert screen.getvalue() == "\x1b[2mh[2Jm\x1b[0m\n\na]0;x\tb\n"


def test_what_is_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model:8").mkdir()
    for text in ("http://a", "https://a.b/v1", "localhost:8088", "10.0.0.1:80/v1"):
        assert is_url(text)
    for text in ("model", "./model", "model:8", "/models/qwen", "Qwen/Qwen3"):
        assert not is_url(text)
