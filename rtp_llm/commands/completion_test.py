# SPDX-License-Identifier: Apache-2.0
"""The scripts complete what the parsers take; bash runs its own here."""

from __future__ import annotations

import re
import subprocess

import pytest

from rtp_llm import cli
from rtp_llm.commands.completion import script
from rtp_llm.commands.table import COMMANDS
from rtp_llm.config.command_line import flag_name
from rtp_llm.config.settings import options

# Prints what bash would offer for words of which the last is being typed.
_ASK = """\
eval "$1"; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_rtp_llm
printf '%s\\n' "${COMPREPLY[@]}"
"""


def complete(*words: str) -> list[str]:
    command = ["bash", "-c", _ASK, "bash", script("bash"), "rtp-llm", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("ex",), ["explain"]),
        (("",), [*COMMANDS, "--help", "--version"]),
        (("serve", "--kv-cache-d"), ["--kv-cache-dtype"]),
        (("serve", "--dtype", ""), ["auto", "float32", "bfloat16", "float16"]),
        (("serve", "model", "--dtype", "b"), ["bfloat16"]),
        (("explain", "--reuse-cache", "o"), ["on", "off"]),
        (("bench", "th"), ["throughput"]),
        (("bench", "serve", "--dataset-n"), ["--dataset-name"]),
        (("bench", "serve", "--dataset-name", ""), ["random", "sharegpt", "custom"]),
        (("chat", "--temp"), ["--temperature"]),
        (("completion", ""), ["--help", "bash", "zsh"]),
        (("serve", "mod"), []),
        (("route", "--dtype", "x"), []),
    ],
)
def test_what_bash_offers(words: tuple[str, ...], offered: list[str]) -> None:
    assert complete(*words) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_every_flag_is_there(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    out = capsys.readouterr().out
    (serve,) = re.findall(r'^ +serve\) \w+="(.*)" ;;$', out, re.MULTILINE)
    flags = {flag_name(name) for name, info in options().items() if not info.positional}
    assert flags <= set(serve.split())


def test_another_shell(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["completion", "fish"])
    assert stopped.value.code == 2
    assert "invalid choice: 'fish' (choose from" in capsys.readouterr().err
