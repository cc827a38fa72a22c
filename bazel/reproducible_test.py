"""Two clones at different paths, without any cache, give the same wheel."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from bazel.nested_for_tests import NestedBazel, source_tree


def _wheel_of_a_clone(folder: Path) -> tuple[str, str]:
    """(name, sha256) of the wheel built from a fresh clone in `folder`."""
    folder.mkdir(parents=True)
    clone = folder / "clone"
    subprocess.run(["git", "clone", "--quiet", str(source_tree()), str(clone)], check=True)
    bazel = NestedBazel(folder)
    try:
        done = bazel.run(clone, "--disk_cache=", "--config=cpu", "//rtp_llm:rtp_llm_cpu")
        assert done.returncode == 0, done.stderr
        (wheel,) = (clone / "bazel-bin" / "rtp_llm" / "rtp_llm_cpu").glob("*.whl")
        return wheel.name, hashlib.sha256(wheel.read_bytes()).hexdigest()
    finally:
        bazel.close()


def test_two_clones_give_the_same_wheel(tmp_path: Path) -> None:
    if not (source_tree() / ".git").exists():
        pytest.fail("this test clones the repository, and the source tree is no git checkout")
    first = _wheel_of_a_clone(tmp_path / "a")
    second = _wheel_of_a_clone(tmp_path / "another" / "much" / "longer" / "path")
    assert first == second
