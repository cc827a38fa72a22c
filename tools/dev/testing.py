# SPDX-License-Identifier: Apache-2.0
"""./dev test, soak and lint."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.dev import bazel, environment, results
from tools.dev.steps import ROOT, StepError, output_of, run, say
from tools.dev.timing import PartTimes

_WHEEL = ("//tools/wheel:contents_test", "//tools/wheel:kernels_test")
_GFX_TARGET = "--//arch_config:gfx_target="
_HIP_TEST = "//bazel:hip_test"
# What `./dev test` runs besides //..., which is the CPU's. No wheel for rocm: its torch wants a
# later ROCm than distributions have; `./dev soak` has its other GPUs. SYCL needs no toolkit:
# packages bring one.
_OF_DEVICES = {
    "cuda": _WHEEL,
    "rocm": (f"{_GFX_TARGET}gfx942", _HIP_TEST, "//tools/wheel:kernels_test"),
    "xpu": ("//rtp_llm/kernels/xpu/...", *_WHEEL),
}
# What can be analysed where a toolkit is complete, and compiles for the GPUs.
_COMPLETE = {
    "cuda": ("@local_cuda//:toolkit",),
    "rocm": (f"{_GFX_TARGET}gfx942", "//rtp_llm/kernels/cuda:kernels"),
}
_HIP_SOAK = ("--config=rocm", f"{_GFX_TARGET}gfx90a,gfx950")

# Tests of the cache store's asynchronous writer; `./dev soak` runs all of the runtime's.
_OF_THREADS = ("//rtp_llm/cpp/cache_store:writer_tests",)

_LINTERS = [
    ROOT / "tools" / "lint" / "node_modules" / name for name in ("@bazel/buildifier", "prettier")
]
_LINT = "--lint"
_AGENTS = ROOT / "tools" / "agents" / "node_modules"


def lint(arguments: Sequence[str] = ()) -> tuple[int, int]:
    """(passed, failed) checks of style, types and layout."""
    return prepare_lint(arguments)()


def prepare_lint(
    arguments: Sequence[str] = (), *, shown_at_once: bool = True
) -> Callable[[], tuple[int, int]]:
    """Builds the lint runner; what is returned runs it without Bazel, and counts as `lint` does.

    Unless `shown_at_once`, its output comes in one piece when it has ended.
    """
    _install("tools/lint", *_LINTERS)
    folder = tempfile.TemporaryDirectory()
    script, report = (Path(folder.name) / name for name in ("lint", "report.json"))
    if bazel.run("run", f"--script_path={script}", "//tools/lint"):
        raise StepError("the lint runner does not build; Bazel's messages are above")

    def check() -> tuple[int, int]:
        with folder:
            done = subprocess.run(
                [script, f"--report={report}", *arguments],
                env={**os.environ, "BUILD_WORKSPACE_DIRECTORY": str(ROOT)},
                stdout=None if shown_at_once else subprocess.PIPE,
                stderr=None if shown_at_once else subprocess.STDOUT,
                text=True,
            )
            print(done.stdout or "", end="", flush=True)
            if not report.exists():
                raise StepError("the lint runner did not finish; its messages are above")
            counts = json.loads(report.read_text())
        return counts["passed"], counts["failed"]

    return check


def test(arguments: Sequence[str]) -> int:
    """Lint and every test, or the named targets alone (with lint if --lint asks for it).

    Prints the closing line, returns the exit code.
    """
    asks_for_lint = _LINT in arguments
    arguments = [argument for argument in arguments if argument != _LINT]
    if _names_targets(arguments) and not asks_for_lint:
        return _close([_bazel_test(arguments)])
    times = PartTimes()
    with times.part("set-up of lint"):
        lint = prepare_lint(shown_at_once=False)

    def timed_lint() -> tuple[int, int]:
        with times.part("lint and types, during the tests"):
            return lint()

    with ThreadPoolExecutor(1) as executor:  # mypy takes one core for a minute
        linted = executor.submit(timed_lint)
        with times.part("build and tests of the CPU, with the wheel"):
            counts = [_bazel_test(arguments)]
    counts += [linted.result()]
    if not _names_targets(arguments):
        with times.part("build and tests under ThreadSanitizer"):
            counts += [_test_threads(arguments)]
        for device in _OF_DEVICES:
            with times.part(f"build and tests for {device}"):
                counts += [_test_device(device, arguments)]
    for line in times.lines():
        print(line)
    return _close(counts)


def soak(arguments: Sequence[str]) -> int:
    """Run the long tests, the runtime's under sanitizers, kernels for AMD; or the named targets."""
    _install("tools/agents", _AGENTS / "@openai")
    flags = [
        "--test_tag_filters=soak",
        "--build_tests_only",
        f"--test_env=AGENTS_MODULES={_AGENTS}",
        f"--test_env=CLIENTS_PYTHON={environment.install_clients()}",
        f"--test_env=RAY_LIBRARY={environment.install_ray()}",
    ]
    counts = [_bazel_test([*flags, *arguments])]
    if not _names_targets(arguments):
        for name in ("asan", "tsan"):
            counts += [_bazel_test([f"--config={name}", "//rtp_llm/cpp/..."])]
        if _has_toolkit("rocm", *_HIP_SOAK, _COMPLETE["rocm"][-1]):
            counts += [_bazel_test([*_HIP_SOAK, _HIP_TEST])]
    return _close(counts)


def _test_threads(arguments: Sequence[str]) -> tuple[int, int]:
    """Run the tests of multithreaded code under ThreadSanitizer."""
    passed, failed = _bazel_test(["--config=tsan", *arguments, *_OF_THREADS])
    print(f"under ThreadSanitizer: {passed} passed, {failed} failed")
    return passed, failed


def _test_device(device: str, arguments: Sequence[str]) -> tuple[int, int]:
    """The tests of a build for another device; none, aloud, where its toolkit is missing."""
    config = f"--config={device}"
    if not _has_toolkit(device, config, *_COMPLETE.get(device, ())):
        return 0, 0
    return _bazel_test([config, *arguments, *_OF_DEVICES[device]])


def _has_toolkit(device: str, *arguments: str) -> bool:
    """Whether a device that needs a toolkit can be built with these arguments; says why not."""
    if device not in _COMPLETE:
        return True
    try:
        output_of([bazel.command(), "build", "--nobuild", *arguments], remedy="")
    except StepError as error:
        say(f"SKIPPED: the tests of the {device} build; this machine has no toolkit for it")
        print(error.what)
        return False
    return True


def _close(counts: Sequence[tuple[int, int]]) -> int:
    passed, failed = (sum(column) for column in zip(*counts, strict=True))
    print(f"{passed} passed, {failed} failed", flush=True)
    return 1 if failed else 0


def _bazel_test(arguments: Sequence[str]) -> tuple[int, int]:
    """(passed, failed) cases of a `bazel test`, after a report of what failed and what was slow."""
    code, targets = _run_targets(arguments)
    for line in results.report(targets):
        print(line)
    if seconds := sum(target.seconds for target in targets if not target.cached):
        print(
            f"tests alone: {seconds:.0f} s in all, several at a time; the rest of the part is the "
            "build"
        )
    passed = sum(target.passed for target in targets)
    failed = sum(target.failed for target in targets)
    if code != 0 and not failed:
        print(f"bazel test ended with exit code {code}: a target does not build, or none was found")
        failed = 1
    return passed, failed


def _names_targets(arguments: Sequence[str]) -> bool:
    return any(_is_target(argument) for argument in arguments)


def _is_target(argument: str) -> bool:
    """The script `dev` asks the same, before there is Python."""
    if argument.startswith("-"):
        return False
    return argument.startswith(("//", "@")) or ":" in argument or argument.endswith("/...")


def _run_targets(arguments: Sequence[str]) -> tuple[int, list[results.Target]]:
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder) / "events.json"
        patterns = [] if _names_targets(arguments) else ["//..."]
        options = ["--keep_going", f"--build_event_json_file={events}"]
        code = bazel.run("test", *options, *arguments, *patterns)
        return code, results.read(events) if events.exists() else []


def _install(folder: str, *packages: Path) -> None:
    """The packages of a folder's lock, once; `packages` are among them."""
    if all(package.exists() for package in packages):
        return
    say(f"installing the packages of {folder}/package.json with npm")
    run(
        ["npm", "ci", "--prefix", folder, "--no-audit", "--no-fund", "--silent"],
        remedy="check the network and npm's configuration (npm config list), then try again",
        shown=False,
    )
