"""Two clones at different paths, without any cache, give the same wheel."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from bazel.nested_for_tests import NestedBazel, source_tree


def _wheel_of_a_clone(folder: Path) -> tuple[str, str]:
    """(name, sha256) of the wheel built from a fresh clone in `folder`."""
    folder.mkdir(parents=True)
    clone = folder / "clone"
    if (source_tree() / ".git").exists():
        subprocess.run(["git", "clone", "--quiet", str(source_tree()), str(clone)], check=True)
    else:  # an archive of the sources
        shutil.copytree(source_tree(), clone, ignore=shutil.ignore_patterns("bazel-*", ".venv"))
    bazel = NestedBazel(folder)
    try:
        done = bazel.run(clone, "--disk_cache=", "--config=cpu", "//rtp_llm:rtp_llm_cpu")
        assert done.returncode == 0, done.stderr
        (wheel,) = (clone / "bazel-bin" / "rtp_llm" / "rtp_llm_cpu").glob("*.whl")
        return wheel.name, hashlib.sha256(wheel.read_bytes()).hexdigest()
    finally:
        bazel.close()


def test_two_clones_give_the_same_wheel(tmp_path: Path) -> None:
    first = _wheel_of_a_clone(tmp_path / "a")
    second = _wheel_of_a_clone(tmp_path / "another" / "much" / "longer" / "path")
    assert first == second
