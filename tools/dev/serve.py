# SPDX-License-Identifier: Apache-2.0
"""./dev serve: build, install, serve."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from tools.dev import environment, wheel
from tools.dev.published import PUBLISHED, fetch
from tools.dev.steps import CALLED_FROM, OFFLINE, ROOT, StepError, say

_DEMO = ROOT / "example" / "demo_model"
_DRAFT_HEAD = ROOT / "example" / "demo_draft_head"
_DEFAULTS = {"--host": "127.0.0.1", "--port": "8088"}


def serve(arguments: Sequence[str]) -> None:
    """Replaces this process by the server; the port is looked at before anything is built."""
    refuse_busy_port(flag_value(arguments, "--host"), flag_value(arguments, "--port"))
    arguments = model_arguments(arguments)
    built = wheel.build("cpu")
    commands = environment.install(built.wheel, built.packages)
    command = [str(commands / "rtp-llm"), "serve", *arguments]
    say(" ".join(command))
    ours = (
        OFFLINE,
        "RTP_LLM_CALLED_FROM",
        "RTP_LLM_PYTHON",
        "RTP_LLM_SETUP_SECONDS",
    )  # the server would ask what they mean
    os.execve(command[0], command, {k: v for k, v in os.environ.items() if k not in ours})


def model_arguments(arguments: Sequence[str]) -> list[str]:
    """Arguments with the place of the model: the demo, a published model, which is fetched, or a
    folder or file, which wins over a published model of that name."""
    if not arguments or arguments[0].startswith("-"):
        return demo_arguments(arguments)
    name, *rest = arguments
    if name in PUBLISHED and not (CALLED_FROM / name).exists():
        return [str(fetch(PUBLISHED[name])), "--served-model-name", name, *rest]
    return [str(CALLED_FROM / name), *rest]


def demo_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the demo's flags for `rtp-llm serve`: it drafts with its own head by default."""
    own = [str(_DEMO), "--served-model-name", "demo"]
    chosen = any(argument.startswith("--speculative") for argument in arguments)
    if not chosen and not any(name.startswith("RTP_LLM_SPECULATIVE") for name in os.environ):
        own += ["--speculative", "eagle3", "--speculative-model", str(_DRAFT_HEAD)]
    return [*own, *arguments]


def refuse_busy_port(host: str, port: str) -> None:
    """Raise StepError if the address cannot be listened on."""
    if not port.isdigit():
        raise StepError(f"--port {port} is not a number")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except (OSError, OverflowError) as error:
            raise StepError(
                f"cannot listen at {host}, port {port}: {error}",
                "stop what listens there, or take another port: ./dev serve --port 8089",
            ) from None


def flag_value(arguments: Sequence[str], flag: str) -> str:
    """Value of `flag`, given as two words or as one, else as the server's environment variable."""
    variable = "RTP_LLM_" + flag.removeprefix("--").upper()
    value = os.environ.get(variable) or _DEFAULTS[flag]
    for index, argument in enumerate(arguments):
        if argument == flag and index + 1 < len(arguments):
            value = arguments[index + 1]
        elif argument.startswith(flag + "="):
            value = argument.partition("=")[2]
    return value
