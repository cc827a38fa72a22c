# SPDX-License-Identifier: Apache-2.0
"""Compiles a lock by pip-tools, for `bazel run` and `bazel test` of compile_pip_requirements."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

_OPTIONS = ("--resolver=backtracking", "--allow-unsafe", "--generate-hashes")


def pins(text: str) -> list[str]:
    """The lines of a lock without comments: they say what is installed."""
    return [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]


def main(argv: Sequence[str] | None = None) -> int:
    """0 if the lock was written or, in a test, is what pip-tools makes now."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--src", required=True)
    parser.add_argument("lock")
    known, options = parser.parse_known_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        # The files are links into the sources, and pip-tools writes over what it reads.
        shutil.copytree(Path(known.lock).parent, Path(folder) / Path(known.lock).parent)
        made = Path(folder) / known.lock
        command = [sys.executable, "-m", "piptools", "compile", *_OPTIONS, *options]
        command += [f"--cache-dir={folder}/cache", f"--output-file={known.lock}", known.src]
        if code := subprocess.run(command, cwd=folder).returncode:
            return code
        if root := os.environ.get("BUILD_WORKSPACE_DIRECTORY"):
            shutil.copyfile(made, Path(root) / known.lock)
            return 0
        if pins(made.read_text()) == pins(Path(known.lock).read_text()):
            return 0
    target = f"//{Path(known.lock).parent}:{Path(known.lock).stem}"
    print(f"{known.lock} is out of date: bazel run {target}.update", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
