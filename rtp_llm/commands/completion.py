# SPDX-License-Identifier: Apache-2.0
"""`rtp-llm completion`: shell completion of commands, flags and their values."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from dataclasses import dataclass

from rtp_llm.commands.command import Parser
from rtp_llm.commands.table import COMMANDS
from rtp_llm.config.settings import options

_BASH = """\
# Completion of rtp-llm for bash: eval "$(rtp-llm completion bash)"
_rtp_llm() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} words=
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    words="{commands}"
  else
    case "${{COMP_WORDS[1]}} ${{COMP_WORDS[COMP_CWORD - 1]}}" in
{values}
      *)
        case "${{COMP_WORDS[1]}}" in
{flags}
        esac
        ;;
    esac
  fi
  # Without a word that fits, bash completes files (-o default).
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -o bashdefault -F _rtp_llm rtp-llm
"""

_ZSH = """\
#compdef rtp-llm
# Completion of rtp-llm for zsh, after compinit: eval "$(rtp-llm completion zsh)"
_rtp_llm() {{
  local found=
  if ((CURRENT == 2)); then
    found="{commands}"
  else
    case "$words[2] $words[CURRENT-1]" in
{values}
      *)
        [[ $PREFIX == -* || $words[2] == (completion|bench) ]] && case "$words[2]" in
{flags}
        esac
        ;;
    esac
  fi
  if [[ -n $found ]]; then compadd -- ${{=found}}; else _files; fi
}}
compdef _rtp_llm rtp-llm
"""

_SHELLS = {"bash": (_BASH, "words"), "zsh": (_ZSH, "found")}


@dataclass(frozen=True)
class _Words:
    """The words of a command: its flags and fixed words, and the values of some flags."""

    plain: list[str]
    values: dict[str, tuple[str, ...]]


def parser() -> argparse.ArgumentParser:
    """Arguments: the name of a shell."""
    made = Parser(
        "rtp-llm completion",
        "Print the completion of commands, flags and their values for a shell.",
        epilog='In ~/.bashrc: eval "$(rtp-llm completion bash)". In ~/.zshrc, after compinit: '
        'eval "$(rtp-llm completion zsh)".',
    )
    made.add_argument("shell", choices=tuple(_SHELLS))
    return made


def main(words: Sequence[str]) -> int:
    """Print the completion script of the requested shell; returns the exit status."""
    print(script(parser().parse_args(words).shell), end="")
    return 0


def script(shell: str) -> str:
    """The completion script for bash or zsh."""
    text, variable = _SHELLS[shell]
    table = {name: _words_of(name) for name in COMMANDS}
    values: dict[str, list[str]] = {}  # grouped by equal choices, for a shorter script
    for name, words in table.items():
        for flag, choices in words.values.items():
            values.setdefault(" ".join(choices), []).append(f'"{name} {flag}"')
    return text.format(
        commands=" ".join([*COMMANDS, "--help", "--version"]),
        values="\n".join(
            f'      {" | ".join(cases)}) {variable}="{choices}" ;;'
            for choices, cases in values.items()
        ),
        flags="\n".join(
            f'          {name}) {variable}="{" ".join(words.plain)}" ;;'
            for name, words in table.items()
        ),
    )


def _words_of(command: str) -> _Words:
    module = importlib.import_module(f"rtp_llm.commands.{command}")
    parsers = {"": module.parser} if hasattr(module, "parser") else module.PARSERS
    found = _Words([name for name in parsers if name], {})
    for make in parsers.values():
        for action in make()._actions:
            choices = _choices(action)
            if not action.option_strings:
                found.plain.extend(choices)
            for flag in action.option_strings:
                if flag.startswith("--") and flag not in found.plain:
                    found.plain.append(flag)
                if choices:
                    found.values[flag] = choices
    return found


def _choices(action: argparse.Action) -> tuple[str, ...]:
    if action.choices:
        return tuple(map(str, action.choices))
    info = options().get(action.dest)
    if info is None:
        return ()
    return ("on", "off") if info.kind == "switch" else info.choices
