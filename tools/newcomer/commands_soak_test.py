# SPDX-License-Identifier: Apache-2.0
"""The CPU's lines of workflows and Dockerfiles, run in an empty folder, with Bazel and pip.

A Docker engine is stood in for by folders: COPY and WORKDIR are done here, RUN by bash. What this
machine cannot do is printed with its reason, and nothing else is left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.newcomer import recipes, shell_lines
from tools.wheel.installed import clean_environment

ROOT = Path("WORKSPACE").resolve().parent


@pytest.fixture(name="tree", scope="module")
def _tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree as checked out, and nothing else; the caches are the machine's."""
    tree = recipes.copy_of(ROOT, tmp_path_factory.mktemp("checkout") / "src")
    for made in ("user.bazelrc", ".rtp_llm_build.json"):
        (tree / made).unlink(missing_ok=True)
    return tree


def run(line: str, folder: Path, **environ: str) -> str:
    environment = {
        **clean_environment(),
        "HOME": str(Path.home()),
        "RTP_LLM_PYTHON": sys._base_executable,  # type: ignore[attr-defined]
        **environ,
    }
    command = ["bash", "-ec", line]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    print(f"$ {line}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    assert done.returncode == 0, line
    return done.stdout


@pytest.mark.parametrize("job", ["lint", "wheel-cpu"])
def test_jobs_of_the_cpu(job: str, tree: Path) -> None:
    print("not run here: job `test`, which is what continuous integration runs (.ci/run)")
    lines = shell_lines.jobs(ROOT / ".github" / "workflows" / "ci.yml")[job]
    printed = [run(line, tree) for line in lines]
    if job == "wheel-cpu":
        assert Path(printed[0].splitlines()[-1]).is_file()


def test_the_image_of_the_cpu(tree: Path, tmp_path: Path) -> None:
    build, image = shell_lines.stages(ROOT / "docker" / "cpu.Dockerfile")
    for line in build.all_of("RUN"):
        run(line, tree)
    (tmp_path / "wheels").symlink_to(tree / "dist")
    subprocess.run([sys._base_executable, "-m", "venv", tmp_path / "python"], check=True)  # type: ignore[attr-defined]
    path = f"{tmp_path / 'python' / 'bin'}:{os.environ['PATH']}"
    for line in image.all_of("RUN"):
        if line.startswith("useradd"):
            print(f"not run: {line} (it would change this machine)")
            continue
        run(line.replace("/wheels/", f"{tmp_path}/wheels/"), tmp_path, PATH=path)
    model = tree / "example" / "demo_model"
    assert "cpu" in run(f"rtp-llm explain {model}", tmp_path, PATH=path)
