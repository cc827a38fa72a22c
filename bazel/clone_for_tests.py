# SPDX-License-Identifier: Apache-2.0
"""The wheel of a fresh clone, for tests that compare it with another's."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bazel.nested_for_tests import NestedBazel, source_tree


def wheel_of_a_clone(folder: Path, compiled: Sequence[str] = ()) -> tuple[str, str]:
    """(name, sha256) of the CPU's wheel, built in a clone of the sources in `folder`.

    The clone compiles the targets `compiled` by itself. For all else it uses the cache of this
    machine (user.bazelrc names it, if there is one), which has what the build around the test
    compiled, at another path.
    """
    clone = _clone(folder)
    bazel = NestedBazel(folder)
    builds = [["//rtp_llm:rtp_llm_cpu"]]
    if compiled:
        builds.insert(0, ["--disk_cache=", *compiled])  # the second build finds the results
    try:
        for arguments in builds:
            done = bazel.run(clone, "--config=cpu", *arguments)
            assert done.returncode == 0, done.stderr
        (wheel,) = (clone / "bazel-bin" / "rtp_llm" / "rtp_llm_cpu").glob("*.whl")
        return wheel.name, hashlib.sha256(wheel.read_bytes()).hexdigest()
    finally:
        bazel.close()


def _clone(folder: Path) -> Path:
    folder.mkdir(parents=True)
    tree, clone = source_tree(), folder / "clone"
    if (tree / ".git").exists():
        subprocess.run(["git", "clone", "--quiet", str(tree), str(clone)], check=True)
    else:  # an archive of the sources
        shutil.copytree(tree, clone, ignore=shutil.ignore_patterns("bazel-*", ".venv"))
    settings = tree / "user.bazelrc"
    if settings.exists():
        shutil.copy(settings, clone)
    return clone
