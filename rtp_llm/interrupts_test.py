# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while something loads: a torch whose import never ends stands in for what takes long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from rtp_llm.interrupts import children_leave_interrupts
from rtp_llm.testing.model_folders import byte_level
from rtp_llm.testing.models.transformers_models import save_model
from rtp_llm.testing.server_processes import TIMEOUT, Process, environment

# As a shell starts what a script puts into the background.
IN_BACKGROUND = ["bash", "-c", 'trap "" INT; exec "$@"', "bash"]
SLOW_TORCH = 'import time\nprint("torch", flush=True)\ntime.sleep(600)\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tokenizer = byte_level()
    save_model(path, "qwen3", vocab_size=tokenizer.get_vocab_size())
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text("{}")
    return path


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    path = tmp_path_factory.mktemp("slow")
    (path / "torch").mkdir()
    (path / "torch" / "__init__.py").write_text(SLOW_TORCH)
    found = environment()
    return {**found, "PYTHONPATH": os.pathsep.join([str(path), found["PYTHONPATH"]])}


def interrupted(command: Sequence[str], environ: dict[str, str]) -> tuple[int, str]:
    """Exit code and standard error of a command that gets SIGINT once it imports torch."""
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        while child.stdout.readline() not in ("torch\n", ""):
            pass
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=TIMEOUT)
    return child.returncode, errors


@pytest.mark.parametrize("shell", [[], IN_BACKGROUND], ids=["terminal", "background"])
def test_a_command_that_loads_ends_with_a_line(
    shell: list[str], folder: Path, slow: dict[str, str]
) -> None:
    command = [*shell, sys.executable, "-m", "rtp_llm", "explain", str(folder)]
    assert interrupted(command, slow) == (130, "rtp-llm explain: interrupted\n")


def test_a_script_that_loads_a_model_ends_with_a_line(folder: Path, slow: dict[str, str]) -> None:
    code = "import sys; from rtp_llm import LLM; LLM(sys.argv[1])"
    done = interrupted([sys.executable, "-c", code, str(folder)], slow)
    assert done == (-signal.SIGINT, f"interrupted while loading {folder}\n")


def test_a_script_may_catch_it_and_reports_of_others_are_whole(
    folder: Path, slow: dict[str, str]
) -> None:
    code = """
import sys
from rtp_llm import LLM
try:
    LLM(sys.argv[1])
except KeyboardInterrupt as error:
    print(error, file=sys.stderr)
raise ValueError("of the script")
"""
    exit_code, errors = interrupted([sys.executable, "-c", code, str(folder)], slow)
    assert exit_code == 1
    assert errors.startswith(f"interrupted while loading {folder}\nTraceback (most recent ")
    assert errors.endswith("\nValueError: of the script\n")


@pytest.mark.parametrize("shell", [[], IN_BACKGROUND], ids=["terminal", "background"])
def test_a_server_that_loads_ends_with_a_line(
    shell: list[str], folder: Path, slow: dict[str, str]
) -> None:
    """The whole group gets it, as from a terminal: the engine process, too, which imports torch."""
    serve = [*shell, sys.executable, "-m", "rtp_llm", "serve"]
    server = Process("--num-threads", "1", command=serve, model=folder, new_group=True, base=slow)
    try:
        server.wait_for("torch")
        os.killpg(server.process.pid, signal.SIGINT)
        assert server.exit_code() == 130
        (line,) = [line for line in server.stderr.splitlines() if " INFO " not in line] or [
            line for line in server.stderr.splitlines() if "SIGINT" in line
        ]
        assert line == "rtp-llm serve: interrupted" or line.endswith(": SIGINT: stopping")
    finally:
        server.process.kill()
        server.process.wait()


def test_children_begin_without_interrupts() -> None:
    """From their first instruction on, whatever they import."""
    show = [sys.executable, "-c", "print(open('/proc/self/status').read())"]
    with children_leave_interrupts():
        shown = subprocess.run(show, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert is_blocked(shown)
    assert not is_blocked(Path("/proc/self/status").read_text())


def is_blocked(status: str) -> bool:
    masks = dict(line.split(":\t") for line in status.splitlines() if line.startswith("SigBlk"))
    return bool(int(masks["SigBlk"], 16) >> (signal.SIGINT - 1) & 1)
