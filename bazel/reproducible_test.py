# SPDX-License-Identifier: Apache-2.0
"""Clones at different paths build the same wheel: one compiles everything, one uses the cache.

The cache of this machine (user.bazelrc names it) has what the build around this test compiled, at a
third path. On a machine without one both clones compile.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from bazel.nested_for_tests import NestedBazel, source_tree


def _wheel_of_a_clone(folder: Path, *, cached: bool) -> tuple[str, str]:
    """(name, sha256) of the wheel built from a fresh clone in `folder`."""
    folder.mkdir(parents=True)
    clone = folder / "clone"
    if (source_tree() / ".git").exists():
        subprocess.run(["git", "clone", "--quiet", str(source_tree()), str(clone)], check=True)
    else:  # an archive of the sources
        shutil.copytree(source_tree(), clone, ignore=shutil.ignore_patterns("bazel-*", ".venv"))
    settings = source_tree() / "user.bazelrc"
    if cached and settings.exists():
        shutil.copy(settings, clone)
    options = [] if cached else ["--disk_cache="]
    bazel = NestedBazel(folder)
    try:
        done = bazel.run(clone, *options, "--config=cpu", "//rtp_llm:rtp_llm_cpu")
        assert done.returncode == 0, done.stderr
        (wheel,) = (clone / "bazel-bin" / "rtp_llm" / "rtp_llm_cpu").glob("*.whl")
        return wheel.name, hashlib.sha256(wheel.read_bytes()).hexdigest()
    finally:
        bazel.close()


def test_two_clones_give_the_same_wheel(tmp_path: Path) -> None:
    compiled = _wheel_of_a_clone(tmp_path / "a", cached=False)
    other = _wheel_of_a_clone(tmp_path / "another" / "much" / "longer" / "path", cached=True)
    assert compiled == other
