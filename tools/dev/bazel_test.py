# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from tools.dev import bazel, steps


@pytest.mark.parametrize("text", ["bazel no_version", "bazel 4.2.3", "bazel 6.5.0", "bazel 7.6.1"])
def test_accepted_versions(text: str) -> None:
    bazel.refuse_version(text)


@pytest.mark.parametrize("text", ["bazel 8.0.0", "bazel 9.1.2"])
def test_releases_that_read_module_bazel_are_taken_aloud(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bazel.refuse_version(text)
    assert f"{text} builds by MODULE.bazel, which was not run yet" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["bazel 10.0.0rc1", "bazel 11.2.0"])
def test_too_new_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(steps.StepError, match="too new") as caught:
        bazel.refuse_version(text)
    assert "bazelisk" in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        ("bazel no_version", "--crosstool_top=@local_xpu//:cc"),
        ("bazel 7.6.1", "--crosstool_top=@local_xpu//:cc"),
        ("bazel 8.0.0", "--platforms=//arch_config:xpu_platform"),
        ("bazel 9.1.2", "--platforms=//arch_config:xpu_platform"),
    ],
)
def test_the_compiler_of_an_xpu_build(text: str, flag: str) -> None:
    assert flag in bazel.sycl_compiler_flags(text).split()


def test_settings_record_the_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bazel, "ROOT", tmp_path)
    monkeypatch.setenv("RTP_LLM_PYTHON", "/opt/python3")
    bazel.write_settings()
    written = (tmp_path / "user.bazelrc").read_text()
    assert "common --repo_env=RTP_LLM_PYTHON=/opt/python3\n" in written
    assert f"build:xpu {bazel.sycl_compiler_flags(bazel._version(bazel.command()))}\n" in written
    before = (tmp_path / "user.bazelrc").stat().st_mtime_ns
    bazel.write_settings()
    assert (tmp_path / "user.bazelrc").stat().st_mtime_ns == before
