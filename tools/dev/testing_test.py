# SPDX-License-Identifier: Apache-2.0
"""What ./dev test runs, with stand-ins for Bazel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tools.dev import bazel, environment, testing
from tools.dev.steps import StepError


class Runs:
    """Notes what is tested; `missing` are the devices without a toolkit."""

    def __init__(self) -> None:
        self.tested: list[list[str]] = []
        self.missing: set[str] = set()

    def test(self, arguments: Sequence[str]) -> tuple[int, int]:
        self.tested.append(list(arguments))
        return 1, 0

    def output_of(self, command: Sequence[str], *, remedy: str) -> str:
        if any(f"--config={device}" in command for device in self.missing):
            raise StepError("@local_x: the build needs a toolkit")
        return ""


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = Runs()
    monkeypatch.setattr(testing, "prepare_lint", lambda *, shown_at_once: lambda: (8, 0))
    monkeypatch.setattr(testing, "_bazel_test", made.test)
    monkeypatch.setattr(testing, "output_of", made.output_of)
    monkeypatch.setattr(bazel, "command", lambda: "bazel")
    return made


def test_every_device_is_tested(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    assert testing.test(["--test_output=all"]) == 0
    cpu, threads, *others = runs.tested
    assert cpu == ["--test_output=all"]
    assert threads[:2] == ["--config=tsan", "--test_output=all"]
    assert threads[2:] == ["//rtp_llm/cpp/cache_store:writer_tests"]
    assert [arguments[0] for arguments in others] == [
        "--config=cuda",
        "--config=rocm",
        "--config=xpu",
    ]
    assert all(arguments[1] == "--test_output=all" for arguments in others)
    assert "--//arch_config:gfx_target=gfx942" in others[1]
    assert "//rtp_llm/kernels/xpu/..." in others[2]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "under ThreadSanitizer: 1 passed, 0 failed"
    assert lines[-1] == "13 passed, 0 failed"


def test_the_time_of_each_part_is_printed(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RTP_LLM_SETUP_SECONDS", "75")
    assert testing.test([]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = lines.index("time of each part:") + 1
    assert lines[first] == "    1:15  setup"
    assert {line.split(maxsplit=1)[1] for line in lines[first + 1 : -1]} == {
        "set-up of lint",
        "lint and types, during the tests",
        "build and tests of the CPU, with the wheel",
        "build and tests under ThreadSanitizer",
        "build and tests for cuda",
        "build and tests for rocm",
        "build and tests for xpu",
    }
    assert testing.test(["//rtp_llm:tests"]) == 0
    assert "time of each part:" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "target", ["//rtp_llm/ops/...", "//rtp_llm:tests", ":tests", "rtp_llm/ops:tests", "rtp_llm/..."]
)
def test_named_targets_are_all_that_runs(
    target: str, runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(testing, "prepare_lint", None)
    assert testing.test([target, "--test_filter=norm"]) == 0
    assert runs.tested == [[target, "--test_filter=norm"]]
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 0 failed"


def test_lint_of_named_targets_is_asked_for(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    assert testing.test(["//rtp_llm/ops/...", "--lint"]) == 0
    assert runs.tested == [["//rtp_llm/ops/..."]]
    assert capsys.readouterr().out.splitlines()[-1] == "9 passed, 0 failed"


def test_a_missing_toolkit_is_said_and_sycl_is_never_left_out(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.missing = {"cuda", "rocm", "xpu"}
    assert testing.test([]) == 0
    assert [arguments[:1] for arguments in runs.tested] == [[], ["--config=tsan"], ["--config=xpu"]]
    output = capsys.readouterr()
    assert "SKIPPED: the tests of the cuda build" in output.err
    assert "the build needs a toolkit" in output.out


def test_soak_has_the_agents_and_the_client_libraries(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed: list[object] = []
    monkeypatch.setattr(testing, "_install", lambda *what: installed.append(what[0]))
    monkeypatch.setattr(environment, "install_clients", lambda: Path("/clients/bin/python"))
    monkeypatch.setattr(environment, "install_ray", lambda: Path("/ray"))
    assert testing.soak([]) == 0
    assert installed == ["tools/agents"]
    soak, *sanitized, hip = runs.tested
    assert "--test_tag_filters=soak" in soak
    assert "--test_env=CLIENTS_PYTHON=/clients/bin/python" in soak
    assert "--test_env=RAY_LIBRARY=/ray" in soak
    assert f"--test_env=AGENTS_MODULES={testing.ROOT}/tools/agents/node_modules" in soak
    assert [arguments[0] for arguments in sanitized] == ["--config=asan", "--config=tsan"]
    gpus = "--//arch_config:gfx_target=gfx90a,gfx950"
    assert hip == ["--config=rocm", gpus, "//bazel:hip_test"]
    runs.tested.clear()
    runs.missing = {"rocm"}
    testing.soak([])
    assert "--config=rocm" not in runs.tested[-1]
    assert "SKIPPED: the tests of the rocm build" in capsys.readouterr().err
    runs.tested.clear()
    testing.soak(["//rtp_llm/server/clients:soak_tests"])
    assert [arguments[-1] for arguments in runs.tested] == ["//rtp_llm/server/clients:soak_tests"]


_SCRIPT = """\
#!/bin/bash
echo "checks of $BUILD_WORKSPACE_DIRECTORY $2"
[[ $2 == broken ]] || echo '{"passed": 3, "failed": 1}' > "${1#--report=}"
"""


def _write_script(subcommand: str, *arguments: str) -> int:
    """Stand in for `bazel run --script_path=FILE //tools/lint`."""
    path = Path(arguments[0].removeprefix("--script_path="))
    path.write_text(_SCRIPT)
    path.chmod(0o755)
    return 0


def test_lint_is_built_first_and_speaks_when_it_has_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(testing, "_install", lambda *_: None)
    monkeypatch.setattr(bazel, "run", _write_script)
    check = testing.prepare_lint(["--fix"], shown_at_once=False)
    assert capsys.readouterr().out == ""
    assert check() == (3, 1)
    assert capsys.readouterr().out == f"checks of {testing.ROOT} --fix\n"
    with pytest.raises(StepError, match="did not finish"):
        testing.lint(["broken"])
    monkeypatch.setattr(bazel, "run", lambda *arguments: 1)
    with pytest.raises(StepError, match="does not build"):
        testing.prepare_lint()
