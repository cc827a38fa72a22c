from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.dev import __main__ as commands
from tools.dev import bazel, bench, lock, steps, wheel


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


def test_a_device_without_lock_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lock, "_DEPS", tmp_path)
    with pytest.raises(steps.StepError, match=r"requirements_xpu\.in does not exist"):
        lock.lock("xpu")


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
