"""./dev lock DEVICE: pip-compile over deps/, hashed, in an environment of its own."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tools.dev.steps import CACHE, ROOT, StepError, run, say

_DEPS = ROOT / "deps"
_OPTIONS = (
    "--quiet",
    "--allow-unsafe",
    "--generate-hashes",
    "--no-emit-index-url",
    "--no-emit-find-links",
    "--strip-extras",
)
_REMEDY = "read pip's message above; the lock that was there is unchanged"


def lock(device: str) -> None:
    """Writes the locks of a device; those of the CPU carry the development lock with them."""
    source = _DEPS / f"requirements_{device}.in"
    if not source.exists():
        raise StepError(
            f"deps/{source.name} does not exist: {device} cannot be locked yet",
            f"write it (its first line: -r requirements_base.in) and run ./dev lock {device} again",
        )
    _compile(device)
    if device == "cpu":
        _compile("dev")
        constraints = (
            _DEPS / "pins_without_torch.txt"
        )  # comments of the lock name it, so no mkstemp
        constraints.write_text("\n".join(_pins_but_torch(_DEPS / "requirements_cpu.txt")))
        try:
            _compile("cpu_pypi", "--constraint", constraints.name)
        finally:
            constraints.unlink()
    say("run ./dev test: the packages are installed anew, and the checks of the locks run")


def _compile(name: str, *options: str) -> None:
    output = f"requirements_{name}.txt"
    say(f"pip-compile deps/requirements_{name}.in")
    # pip-compile names its files as they are given, so it runs where they are.
    compiler = f'cd deps && exec {_pip_compile()} "$@"'
    index = os.environ.get("RTP_LLM_TORCH_INDEX")
    pip = "--pip-args=--only-binary :all:" + (f" --extra-index-url {index}" if index else "")
    command = ["sh", "-c", compiler, "sh", *_OPTIONS, pip, *options]
    device = "cpu" if name == "dev" else name.partition("_")[0]
    run(
        [*command, "--output-file", output, f"requirements_{name}.in"],
        remedy=_REMEDY,
        env={"CUSTOM_COMPILE_COMMAND": f"./dev lock {device}"},
        shown=False,
    )


def _pip_compile() -> Path:
    """pip-tools of the locked version, apart from the packages that it locks."""
    (pin,) = re.findall(r"^pip-tools==(\S+)", (_DEPS / "requirements_dev.txt").read_text(), re.M)
    folder = CACHE / f"pip-tools-{pin}"
    command = folder / "bin" / "pip-compile"
    if not command.exists():
        say(f"installing pip-tools {pin} into {folder}")
        run([os.environ["RTP_LLM_PYTHON"], "-m", "venv", "--clear", str(folder)], remedy=_REMEDY)
        run([str(folder / "bin" / "pip"), "install", "-q", f"pip-tools=={pin}"], remedy=_REMEDY)
    return command


def _pins_but_torch(path: Path) -> list[str]:
    pins = re.findall(r"^([a-z0-9][\w.-]*==\S+)", path.read_text(), re.M)
    return [pin for pin in pins if not pin.startswith("torch==")]
