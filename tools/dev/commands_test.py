# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tools.dev import __main__ as commands
from tools.dev import bazel, bench, lock, wheel


@pytest.fixture(autouse=True)
def no_bazel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bazel, "command", lambda: "bazel")
    monkeypatch.setattr(bazel, "write_settings", lambda: None)


def test_help_lists_every_command() -> None:
    """The help is in the script itself: a bare machine has no Python yet."""
    listed = set(re.findall(r"^  (\w+) .*", Path("dev").read_text(), re.MULTILINE))
    assert set(commands._COMMANDS) <= listed


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["biuld"]) == 2
    assert "no command 'biuld'; ./dev help" in capsys.readouterr().err


def test_unknown_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["build", "gpu", "--offline"]) == 1
    assert "no device 'gpu'\n     the devices are cpu, cuda, rocm, xpu" in capsys.readouterr().err


def test_an_unknown_lock(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["lock", "gpu"]) == 1
    assert (
        "no lock 'gpu'\n     the locks are clients, cpu, cuda, ray, rocm, sycl, xpu"
        in capsys.readouterr().err
    )


class Tools:
    """Stands in for pip-tools and uv: notes what it was asked for, and writes the lock."""

    def __init__(self, deps: Path) -> None:
        self.deps = deps
        self.commands: list[list[str]] = []
        self.constraints = ""

    def __call__(self, name: str, *command: str) -> None:
        self.commands.append([Path(command[0]).name, *command[1:]])
        if "--constraint" in command:
            self.constraints = (self.deps / command[command.index("--constraint") + 1]).read_text()
        (self.deps / command[-2]).write_text("a==1 --hash=sha256:00\n")


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Tools:
    made = Tools(tmp_path)
    (tmp_path / "requirements_cpu.txt").write_text("a==1 \\\n    --hash=1\ntorch==2+cpu \\\n")
    (tmp_path / "requirements_dev.txt").write_text("pip-tools==7.0 \\\n")
    monkeypatch.setattr(lock, "_DEPS", tmp_path)
    monkeypatch.setattr(lock, "_tool", lambda pin, program: Path(program))
    monkeypatch.setattr(lock, "_run_in_deps", made)
    monkeypatch.delenv("RTP_LLM_TORCH_INDEX", raising=False)
    return made


def test_cuda_is_locked_for_both_machines_with_the_pins_of_the_cpu(tools: Tools) -> None:
    lock.lock("cuda")
    x86, arm = tools.commands
    assert (x86[0], x86[-2:]) == (
        "pip-compile",
        ["requirements_cuda.txt", "requirements_cuda.in"],
    )
    assert (arm[0], arm[-2:]) == ("uv", ["requirements_cuda_aarch64.txt", "requirements_cuda.in"])
    assert "--python-platform=aarch64-manylinux_2_31" in arm
    assert tools.constraints == "a==1"
    assert not list(tools.deps.glob("pins*"))


def test_a_torch_that_is_elsewhere_is_left_out_aloud(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock.lock("xpu")
    assert tools.commands[-1][-2:] == ["requirements_xpu.txt", "requirements_base.in"]
    written = (tools.deps / "requirements_xpu.txt").read_text()
    assert written.startswith("# Written without an index of this torch")

    monkeypatch.setenv("RTP_LLM_TORCH_INDEX", "https://an.index")
    lock.lock("xpu")
    assert tools.commands[-1][-2:] == ["requirements_xpu.txt", "requirements_xpu.in"]
    assert any("--extra-index-url https://an.index" in word for word in tools.commands[-1])
    assert "Written without" not in (tools.deps / "requirements_xpu.txt").read_text()


def test_dist_keeps_one_wheel_per_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(wheel, "ROOT", tmp_path)
    names = ("1+cpu-cp311-old", "1+cuda-cp311-x", "1+cpu-cp311-new")
    for name in names:
        source = tmp_path / f"rtp_llm-{name}.whl"
        source.write_text(name)
        wheel.copy_to_dist(source)
    left = {path.name for path in (tmp_path / "dist").iterdir()}
    assert left == {"rtp_llm-1+cuda-cp311-x.whl", "rtp_llm-1+cpu-cp311-new.whl"}


def test_benchmarks_are_listed_with_their_purpose(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "_FOLDER", tmp_path)
    program = '"""Cost of a step.\n\nMore."""\nif __name__ == "__main__":\n    pass\n'
    (tmp_path / "step_cost.py").write_text(program)
    (tmp_path / "report.py").write_text('"""Tables."""\n')
    assert commands.main(["bench"]) == 0
    assert capsys.readouterr().out.split() == ["step_cost", "Cost", "of", "a", "step."]
    assert commands.main(["bench", "x"]) == 1


def test_a_json_file_is_meant_from_where_dev_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "CALLED_FROM", Path("/home/me"))
    words = ["--json", "out.json", "--quick"]
    assert bench.absolute_file(words) == ["--json", "/home/me/out.json", "--quick"]


def test_the_record_keeps_an_entry_for_each_device_whose_libraries_are_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(wheel, "ROOT", tmp_path)
    record = tmp_path / ".rtp_llm_build.json"
    record.write_text('{"device": "cpu", "ops_library": "of an older form"}')
    (tmp_path / "lib").mkdir()
    for name in ("_runtime.cpython-311.so", "lib/librtp_llm_cpu.so", "lib/librtp_llm_cuda.so"):
        (tmp_path / name).touch()
    wheel._write_build_record(tmp_path, "cuda")
    wheel._write_build_record(tmp_path, "cpu")
    entries = json.loads(record.read_text())
    assert [*entries] == ["cuda", "cpu"]
    assert entries["cuda"]["ops_library"] == str(tmp_path / "lib/librtp_llm_cuda.so")
    (tmp_path / "lib/librtp_llm_cuda.so").unlink()
    wheel._write_build_record(tmp_path, "cpu")
    assert [*json.loads(record.read_text())] == ["cpu"]
