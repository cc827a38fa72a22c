# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tools.dev import serve
from tools.dev.published import GEMMA
from tools.dev.steps import StepError


def test_busy_port_is_refused_with_the_way_out() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StepError, match=f"cannot listen at 127.0.0.1, port {port}") as caught:
            serve.refuse_busy_port("127.0.0.1", str(port))
        assert "--port" in caught.value.remedy


def test_free_port_is_accepted() -> None:
    serve.refuse_busy_port("127.0.0.1", "0")


def test_port_must_be_a_number() -> None:
    with pytest.raises(StepError, match="not a number"):
        serve.refuse_busy_port("127.0.0.1", "http")


@pytest.mark.parametrize(
    ("arguments", "port"),
    [
        ([], "8088"),
        (["--port", "1"], "1"),
        (["model", "--port=2", "--host", "::1"], "2"),
        (["--port", "1", "--port", "3"], "3"),
    ],
)
def test_port_is_read_as_the_server_does(arguments: list[str], port: str) -> None:
    assert serve.flag_value(arguments, "--port") == port


def test_port_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RTP_LLM_PORT", "9")
    assert serve.flag_value([], "--port") == "9"
    assert serve.flag_value(["--port", "1"], "--port") == "1"


def test_the_demo_drafts_unless_configured_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "eagle3" in serve.demo_arguments(["--port", "1"])
    assert "eagle3" not in serve.demo_arguments(["--speculative", "ngram"])
    assert "eagle3" not in serve.demo_arguments(["--speculative-config={}"])
    monkeypatch.setenv("RTP_LLM_SPECULATIVE", "none")
    assert "eagle3" not in serve.demo_arguments([])


def test_published_models_are_fetched_unless_a_folder_has_their_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(serve, "CALLED_FROM", tmp_path)
    monkeypatch.setattr(serve, "fetch", lambda model: Path("/cache") / model.title)
    found = serve.model_arguments(["gemma", "--port", "1"])
    assert found == [f"/cache/{GEMMA.title}", "--served-model-name", "gemma", "--port", "1"]
    assert serve.model_arguments(["x/y.gguf", "--port", "1"]) == [
        str(tmp_path / "x/y.gguf"),
        "--port",
        "1",
    ]
    (tmp_path / "gemma").mkdir()
    assert serve.model_arguments(["gemma"]) == [str(tmp_path / "gemma")]
    assert serve.model_arguments(["--port", "1"])[-2:] == ["--port", "1"]
