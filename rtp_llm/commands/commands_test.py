# SPDX-License-Identifier: Apache-2.0
"""Every command has a help page, completion, a row of docs/commands.md and of `rtp-llm --help`."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtp_llm import cli
from rtp_llm.commands.completion import script
from rtp_llm.commands.table import COMMANDS

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_found(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: object = cli.main([command, "--help"])
    except SystemExit as stopped:  # argparse's
        code = stopped.code
    assert code == 0
    assert capsys.readouterr().out.startswith(f"usage: rtp-llm {command}")
    for shell in ("bash", "zsh"):
        assert f"          {command}) " in script(shell)
    assert f"`rtp-llm {command}" in PAGE.read_text()
    assert cli.main(["--help"]) == 0
    assert f"  {COMMANDS[command][0]} " in capsys.readouterr().out


def test_bench_has_a_help_page_for_each_of_its_own() -> None:
    for name in ("serve", "latency", "throughput"):
        with pytest.raises(SystemExit) as stopped:
            cli.main(["bench", name, "--help"])
        assert stopped.value.code == 0
