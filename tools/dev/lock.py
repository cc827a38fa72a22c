# SPDX-License-Identifier: Apache-2.0
"""./dev lock NAME: hashed locks from deps/*.in, made by tools in environments of their own."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tools.dev.steps import CACHE, ROOT, StepError, run, say

# Every device, the packages of the SYCL toolchain, the client libraries of `./dev soak`, Ray.
NAMES = ("clients", "cpu", "cuda", "ray", "rocm", "sycl", "xpu")

_DEPS = ROOT / "deps"
_PIP_TOOLS_OPTIONS = (
    "--quiet",
    "--allow-unsafe",
    "--generate-hashes",
    "--no-emit-index-url",
    "--no-emit-find-links",
    "--strip-extras",
)
# pip-tools resolves for the machine that it runs on; uv resolves for any given platform.
_UV = "uv==0.13.9"
_UV_OPTIONS = (
    "--quiet",
    "--no-config",
    "--generate-hashes",
    "--emit-build-options",
    "--only-binary=:all:",
    "--strip-extras",
    "--python-version=3.11",
    "--python-platform=aarch64-manylinux_2_31",  # what llguidance's wheels need
)
_ALONE = ("clients", "sycl")  # never installed with another lock, so with pins of their own
_TORCH_ELSEWHERE = ("rocm", "xpu")  # on PyTorch's own indexes only
_WITHOUT_TORCH = "# Written without an index of this torch: it and what it brings are missing.\n"
_REMEDY = "read the message above; the lock that was there is unchanged"


def lock(name: str) -> None:
    """Write the locks of a device; for the CPU, the development lock, too.

    What several devices have they have in one version, the one in the CPU's lock.
    """
    if name not in NAMES:
        raise StepError(f"no lock {name!r}", f"the locks are {', '.join(NAMES)}")
    if name == "cpu":
        _compile("cpu")
        _compile("dev")
        say("now the other devices: ./dev lock cuda, rocm, xpu; their common pins are the CPU's")
    elif name in _ALONE:
        _compile(name)
    else:
        _lock_beside_the_cpu(name)
    say("run ./dev test: the packages are installed anew, and the checks of the locks run")


def _lock_beside_the_cpu(device: str) -> None:
    constraints = _DEPS / "pins_without_torch.txt"  # comments of the lock name it, so no mkstemp
    constraints.write_text("\n".join(_pins_but_torch(_DEPS / "requirements_cpu.txt")))
    try:
        if device in _TORCH_ELSEWHERE and not os.environ.get("RTP_LLM_TORCH_INDEX"):
            _compile(device, "--constraint", constraints.name, wanted="base")
            path = _DEPS / f"requirements_{device}.txt"
            path.write_text(_WITHOUT_TORCH + path.read_text())
            say(f"{path.name} has no torch: RTP_LLM_TORCH_INDEX names an index that has {device}'s")
        else:
            _compile(device, "--constraint", constraints.name)
        if device == "cuda":
            _compile_for_aarch64("cuda", "--constraint", constraints.name)
    finally:
        constraints.unlink()


def _compile(name: str, *options: str, wanted: str = "") -> None:
    """deps/requirements_NAME.txt from requirements_WANTED.in (by default of the same name)."""
    (pin,) = re.findall(r"^pip-tools==(\S+)", (_DEPS / "requirements_dev.txt").read_text(), re.M)
    pip_compile = _tool(f"pip-tools=={pin}", "pip-compile")
    index = os.environ.get("RTP_LLM_TORCH_INDEX")
    pip = "--pip-args=--only-binary :all:" + (f" --extra-index-url {index}" if index else "")
    output = ("--output-file", f"requirements_{name}.txt", f"requirements_{wanted or name}.in")
    _run_in_deps(name, str(pip_compile), *_PIP_TOOLS_OPTIONS, pip, *options, *output)


def _compile_for_aarch64(name: str, *options: str) -> None:
    output = ("--output-file", f"requirements_{name}_aarch64.txt", f"requirements_{name}.in")
    _run_in_deps(name, str(_tool(_UV, "uv")), "pip", "compile", *_UV_OPTIONS, *options, *output)


def _run_in_deps(name: str, *command: str) -> None:
    """Run a tool in the files' folder: both tools copy file names into comments as given."""
    say(f"{Path(command[0]).name}: deps/{command[-2]}")
    comment = f"./dev lock {'cpu' if name == 'dev' else name}"
    settings = {"CUSTOM_COMPILE_COMMAND": comment, "UV_CUSTOM_COMPILE_COMMAND": comment}
    in_deps = ["sh", "-c", 'cd deps && exec "$@"', "sh"]
    run([*in_deps, *command], remedy=_REMEDY, env=settings, shown=False)


def _tool(pin: str, program: str) -> Path:
    """A program of the pinned package, apart from the packages that it locks."""
    folder = CACHE / pin.replace("==", "-")
    if not (folder / "bin" / program).exists():
        say(f"installing {pin} into {folder}")
        run([os.environ["RTP_LLM_PYTHON"], "-m", "venv", "--clear", str(folder)], remedy=_REMEDY)
        run([str(folder / "bin" / "pip"), "install", "-q", pin], remedy=_REMEDY)
    return folder / "bin" / program


def _pins_but_torch(path: Path) -> list[str]:
    pins = re.findall(r"^([a-z0-9][\w.-]*==\S+)", path.read_text(), re.M)
    return [pin for pin in pins if not pin.startswith("torch==")]
