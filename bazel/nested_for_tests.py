# SPDX-License-Identifier: Apache-2.0
"""Bazel inside a test: a server of its own, with the packages that the outer build installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

DEVICES = ("cpu", "cuda", "rocm", "xpu")


class NestedBazel:
    """A Bazel server whose output base is in `folder`; close() ends it.

    `installed` are the devices whose packages stand-ins replace: the outer build's.
    """

    def __init__(self, folder: Path, installed: tuple[str, ...] = DEVICES) -> None:
        self._installed = installed
        self.output_base = folder / "base"
        command = shutil.which("bazel") or shutil.which("bazelisk")
        if not command:
            raise RuntimeError("no bazel or bazelisk on the PATH of tests")
        self._startup = [
            command,
            f"--output_user_root={folder / 'user'}",
            f"--output_base={self.output_base}",
            "--max_idle_secs=60",
            # A server lives for a minute: optimised compilation of its code would not pay off.
            "--host_jvm_args=-XX:TieredStopAtLevel=1",
            "--host_jvm_args=-XX:+UseSerialGC",
        ]
        self._folder = folder

    @property
    def fetched(self) -> set[str]:
        """Names of the external repositories that were fetched."""
        folder = self.output_base / "external"
        return {path.name for path in folder.iterdir() if not path.name.startswith("@")}

    def run(
        self, workspace: Path, *arguments: str, command: str = "build"
    ) -> subprocess.CompletedProcess[str]:
        """`bazel COMMAND ARGUMENTS` in `workspace`, with this test's interpreter and packages."""
        venv = Path(sys.prefix).parent
        return subprocess.run(
            [
                *self._startup,
                command,
                "--curses=no",
                "--noshow_progress",
                f"--repo_env=RTP_LLM_PYTHON={sys._base_executable}",  # type: ignore[attr-defined]
                *(f"--override_repository=pip_{name}_venv={venv}" for name in self._installed),
                *arguments,
            ],
            cwd=workspace,
            env={"HOME": str(self._folder), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
        )

    def close(self) -> None:
        subprocess.run([*self._startup, "shutdown"], cwd=self._folder, capture_output=True)
        # Bazel makes its folders read-only, which breaks pytest's clean-up.
        subprocess.run(["chmod", "-R", "u+w", str(self.output_base)], capture_output=True)


def linked_tree(folder: Path) -> Path:
    """Fill `folder` with links to the sources, leaving out the outer build's bazel-* links."""
    folder.mkdir(exist_ok=True)
    for path in source_tree().iterdir():
        if not path.name.startswith((".", "bazel-")):
            (folder / path.name).symlink_to(path)
    shutil.copy(source_tree() / ".bazelrc", folder)
    return folder


def source_tree() -> Path:
    """Return the workspace that this test was built from: runfiles are links into it."""
    return Path("WORKSPACE").resolve().parent
