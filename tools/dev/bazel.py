# SPDX-License-Identifier: Apache-2.0
"""Bazel, called as documented: every command line is printed and works by itself."""

from __future__ import annotations

import functools
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.dev.steps import CACHE, ROOT, StepError, exit_code, output_of, say, write_if_changed

FIRST_BY_MODULE = 8  # from there on MODULE.bazel is read in place of WORKSPACE
FIRST_REFUSED = 10
# How --config=xpu chooses the compiler of oneAPI; without one both come to the host's compiler.
_BY_SUITE = "--crosstool_top=@local_xpu//:cc --host_crosstool_top=@bazel_tools//tools/cpp:toolchain"
_BY_PLATFORM = "--platforms=//arch_config:xpu_platform"


@functools.cache
def command() -> str:
    """Return the name of the Bazel on the PATH; raises StepError for an unsupported version."""
    for name in ("bazel", "bazelisk"):
        if shutil.which(name):
            refuse_version(_version(name))
            return name
    raise StepError("no bazel or bazelisk on the PATH", "run ./dev setup without --offline")


@functools.cache
def _version(name: str) -> str:
    return output_of([name, "--version"], remedy="install Bazel 4.2.3 to 7")


def _release(text: str) -> int:
    """The major version in `bazel --version`; 0 for Debian's, which says `no_version` (4.2.3)."""
    found = re.search(r"(\d+)\.\d+", text)
    return int(found.group(1)) if found else 0


def sycl_compiler_flags(text: str) -> str:
    """How the Bazel with this `bazel --version` chooses the compiler of an xpu build."""
    return _BY_PLATFORM if _release(text) >= FIRST_BY_MODULE else _BY_SUITE


def refuse_version(text: str) -> None:
    """StepError for `bazel --version` of a too new release.

    Says so where this repository was written for a release without having been run with it.
    """
    release = _release(text)
    if FIRST_BY_MODULE <= release < FIRST_REFUSED:
        say(f"{text} builds by MODULE.bazel, which was not run yet; Bazel 4.2.3 to 7 are safer")
    if release >= FIRST_REFUSED:
        raise StepError(
            f"{text} is too new: this repository is written for Bazel 4.2.3 to 9",
            "put bazelisk on the PATH under the name bazel (.bazeliskrc picks 6.5.0), or Debian's "
            "bazel-bootstrap",
        )


def write_settings() -> None:
    """user.bazelrc: the interpreter and the caches of this machine."""
    lines = [
        "# Written by ./dev: what is true of this machine only.",
        f"common --repo_env=RTP_LLM_PYTHON={os.environ['RTP_LLM_PYTHON']}",
        f"common --repo_env=RTP_LLM_BUILD_CACHE={CACHE}",
        f"build --disk_cache={CACHE / 'bazel-disk'}",
        f"build --repository_cache={CACHE / 'bazel-repositories'}",
        f"build:xpu {sycl_compiler_flags(_version(command()))}",
    ]
    compiler = os.environ.get("CC") or shutil.which("/usr/bin/gcc")
    if compiler:  # a wrapped gcc at the head of the PATH would be taken otherwise
        lines.append(f"common --repo_env=CC={compiler}")
    if hipcc := shutil.which("hipcc") or shutil.which("/opt/rocm/bin/hipcc"):
        lines.append(f"common --repo_env=RTP_LLM_HIPCC={hipcc}")
    for name in ("RTP_LLM_TORCH", "RTP_LLM_TORCH_INDEX"):
        if value := os.environ.get(name):
            lines.append(f"common --repo_env={name}={value}")
    if write_if_changed(ROOT / "user.bazelrc", "\n".join(lines) + "\n"):
        say(f"wrote user.bazelrc (interpreter {os.environ['RTP_LLM_PYTHON']}, caches in {CACHE})")


def _progress() -> list[str]:
    return [] if sys.stderr.isatty() else ["--curses=no", "--show_progress_rate_limit=20"]


def run(subcommand: str, *arguments: str) -> int:
    """Exit code of `bazel SUBCOMMAND ARGUMENTS`."""
    return exit_code([command(), subcommand, *_progress(), *arguments])


def build(*arguments: str) -> None:
    """Run `bazel build` with these arguments; raises StepError if it fails."""
    if run("build", *arguments):
        raise StepError(
            "the build failed; Bazel's messages are above",
            "mend what they name and run the same command again; what is built stays built",
        )


def output_folder(arguments: Sequence[str]) -> Path:
    """Return a build's output folder for these arguments (bazel-bin follows the latest build)."""
    return Path(output_of([command(), "info", *arguments, "bazel-bin"], remedy="run ./dev setup"))


def package_folder(device: str) -> Path:
    """Return the folder with the fetched Python packages of a device."""
    base = output_of([command(), "info", "output_base"], remedy="run ./dev setup")
    return Path(base) / "external" / f"pip_{device}"
