# SPDX-License-Identifier: Apache-2.0
"""Workflows, Dockerfiles and hooks: that they call ./dev, and what these calls come to.

The CPU's lines are run with a stand-in for Bazel here, in an empty folder; with Bazel and pip, by
commands_soak_test.py.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tools.newcomer import shell_lines

ROOT = Path("WORKSPACE").resolve().parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
CI = shell_lines.jobs(ROOT / ".github" / "workflows" / "ci.yml")
_WHEEL = "//tools/wheel:contents_test //tools/wheel:kernels_test"
# What the job that builds a device's wheel tests without the device.
DEVICES = {
    "cpu": _WHEEL,
    "cuda": _WHEEL,
    "rocm": _WHEEL,
    "xpu": f"//rtp_llm/kernels/xpu/... {_WHEEL}",
}
_BAZEL = """\
#!/bin/bash
case $1 in
  --version) echo "bazel 4.2.3" ;;
  *) echo "$@" >> {log}; exit 1 ;;
esac
"""


def test_every_job_runs_dev_alone() -> None:
    lines = [
        line for file in WORKFLOWS for some in shell_lines.jobs(file).values() for line in some
    ]
    assert set(lines) == {
        "./dev lint",
        "./dev test",
        "./dev soak",
        *(f"./dev build {device}" for device in DEVICES),
        *(f"./dev test --config={device} {targets}" for device, targets in DEVICES.items()),
    }
    help_text = (ROOT / "dev").read_text()
    for line in lines:
        assert f"\n  {line.split()[1]} " in help_text, line


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_jobs_start_from_a_checkout_and_may_only_read(file: Path) -> None:
    workflow = yaml.safe_load(file.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["steps"][0] == {"uses": "actions/checkout@v4"}


def test_what_ci_runs_is_what_the_workflow_runs() -> None:
    (line,) = CI["test"]
    assert f"exec {line} " in (ROOT / ".ci" / "run").read_text()


def test_the_hook_runs_the_same_lint() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    (repository,) = config["repos"]
    (hook,) = repository["hooks"]
    assert (repository["repo"], hook["language"]) == ("local", "system")
    assert [hook["entry"]] == CI["lint"]


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ("lint", "run //tools/lint"),
        ("test", "run //tools/lint"),  # comes first
        ("wheel-cpu", "build --config=cpu //rtp_llm:rtp_llm_cpu"),
    ],
)
def test_lines_of_the_cpu_reach_bazel_from_an_empty_folder(
    job: str, expected: str, tmp_path: Path
) -> None:
    tree, tools, log = tmp_path / "tree", tmp_path / "bin", tmp_path / "bazel.log"
    shutil.copytree(ROOT / "tools", tree / "tools", ignore=shutil.ignore_patterns("node_modules"))
    shutil.copy(ROOT / "dev", tree)
    tools.mkdir()
    stand_ins = {"bazel": _BAZEL.format(log=log), "npm": _npm(tree), "hipcc": "#!/bin/bash\n"}
    for name, text in stand_ins.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    environment = {
        "PATH": f"{tools}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "RTP_LLM_PYTHON": sys._base_executable,  # type: ignore[attr-defined]
    }
    line = CI[job][0]
    done = subprocess.run(
        ["bash", "-ec", line], cwd=tree, env=environment, capture_output=True, text=True
    )
    assert done.returncode != 0  # the stand-in fails, and that ends the job
    assert log.exists(), done.stderr
    command = log.read_text().splitlines()[0].split()
    assert [word for word in command if word in expected.split()] == expected.split(), command


def _npm(tree: Path) -> str:
    """Installs a buildifier, of which ./dev only sees that it is there."""
    folder = tree / "tools" / "lint" / "node_modules" / "@bazel" / "buildifier"
    return f"#!/bin/bash\nmkdir -p {shlex.quote(str(folder))}\n"


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_dockerfiles_build_the_wheel_and_install_it(file: Path) -> None:
    device = file.name.partition(".")[0]
    build, image = shell_lines.stages(file)
    assert build.instructions == (
        ("COPY", ". /src"),
        ("WORKDIR", "/src"),
        ("RUN", f"./dev build {device}"),
    )
    assert image.instructions[0] == ("COPY", f"--from={build.name} /src/dist/ /wheels/")
    local = {"cuda": "cu130", "rocm": "rocm7.2"}.get(device, device)
    torch, wheel = [line for line in image.all_of("RUN") if "pip install" in line]
    assert " torch==2.13.0" in torch
    assert wheel.endswith(f"pip install --no-cache-dir /wheels/rtp_llm-*+{local}-*.whl")
    assert image.all_of("USER") == ["rtp-llm"]
    assert image.all_of("ENTRYPOINT")[0].endswith('rtp-llm"]')


def test_there_is_a_dockerfile_for_each_device_and_what_was_not_run_is_named() -> None:
    assert [file.name.partition(".")[0] for file in DOCKERFILES] == ["cpu", "cuda", "rocm", "xpu"]
    for file in [*DOCKERFILES, *WORKFLOWS]:
        head = "".join(line for line in file.read_text().splitlines(True) if line.startswith("#"))
        assert "Not run: " in head, file.name


def test_the_context_of_docker_leaves_out_what_tools_make() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    made = [line.strip("/") for line in (ROOT / ".gitignore").read_text().split()]
    assert {"dist", "bazel-*", ".venv", "user.bazelrc"} <= set(made) & set(ignored)
    assert os.path.exists(ROOT / "LICENSE")
