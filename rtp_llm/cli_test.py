from __future__ import annotations

from pathlib import Path

import pytest

from rtp_llm import __version__, cli


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"rtp-llm {__version__}\n"
    assert cli.main(["--help"]) == 0
    assert "rtp-llm" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        cli.main(["serve", "--help"])
    assert stopped.value.code == 0
    assert "--max-seq-len" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        ([], 2, "a command is needed"),
        (["sing"], 2, "no command 'sing'"),
        (["serve"], 2, "MODEL: give the folder"),
        (["serve", "m", "--port", "x"], 2, "--port: 'x' is not a whole number"),
        (["serve", "/nowhere/model"], 1, "no model folder at /nowhere/model"),
        (["explain", "/nowhere/model"], 1, "no model folder at /nowhere/model"),
    ],
)
def test_errors(
    argv: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == code
    assert message in capsys.readouterr().err


def test_a_folder_that_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "readme.txt").touch()
    assert cli.main(["serve", str(tmp_path)]) == 1
    assert "lacks config.json, tokenizer.json" in capsys.readouterr().err
