# SPDX-License-Identifier: Apache-2.0
"""Commands of ./dev."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from tools.dev import bazel, bench, lock, serve, testing, wheel
from tools.dev.steps import OFFLINE, StepError, say


def _serve(arguments: list[str]) -> int:
    serve.serve(arguments)
    return 0


def _build(arguments: list[str]) -> int:
    built = wheel.build(_device(arguments))
    print(wheel.copy_to_dist(built.wheel))
    return 0


def _lock(arguments: list[str]) -> int:
    lock.lock(_device(arguments))
    return 0


def _lint(arguments: list[str]) -> int:
    passed, failed = testing.lint(arguments)
    print(f"{passed} checks passed, {failed} failed")
    return 1 if failed else 0


def _setup(arguments: list[str]) -> int:
    say("the machine is ready; for example: bazel build --config=cpu //rtp_llm:rtp_llm_cpu")
    return 0


def _device(arguments: Sequence[str]) -> str:
    if len(arguments) != 1:
        raise StepError("one device is needed", f"one of {', '.join(wheel.DEVICES)}")
    return arguments[0]


_COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "bench": bench.bench,
    "build": _build,
    "format": lambda arguments: _lint(["--fix", *arguments]),
    "lint": _lint,
    "lock": _lock,
    "serve": _serve,
    "setup": _setup,
    "soak": testing.soak,
    "test": testing.test,
}


def main(arguments: Sequence[str]) -> int:
    """Exit code of `./dev ARGUMENTS`."""
    name, *rest = [argument for argument in arguments if argument != "--offline"]
    if "--offline" in arguments:
        os.environ[OFFLINE] = "1"
    if name not in _COMMANDS:
        print(f"dev: no command {name!r}; ./dev help lists them", file=sys.stderr)
        return 2
    try:
        bazel.command()
        bazel.write_settings()
        return _COMMANDS[name](rest)
    except StepError as error:
        print(f"dev: {error.what}", file=sys.stderr)
        if error.remedy:
            print(f"     {error.remedy}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
