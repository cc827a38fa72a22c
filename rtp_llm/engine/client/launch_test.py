# SPDX-License-Identifier: Apache-2.0
"""What the engine process is started with."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import rtp_llm
from rtp_llm.config.settings import Settings
from rtp_llm.engine.address import EngineAddress
from rtp_llm.engine.client.launch import EngineProcess

_TELL = "import os; print(os.environ['OMP_WAIT_POLICY'], os.environ['PYTHONPATH'], flush=True)"


@pytest.mark.parametrize(("of_user", "expected"), [(None, "passive"), ("active", "active")])
def test_torchs_threads_sleep_unless_the_user_says_otherwise(
    of_user: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if of_user:
        monkeypatch.setenv("OMP_WAIT_POLICY", of_user)
    (tmp_path / "teller.py").write_text(_TELL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    output = tmp_path / "output"
    with output.open("wb") as file:
        real = subprocess.Popen

        def popen(command: list[str], **options: object) -> subprocess.Popen[bytes]:
            return real(command, stdout=file, **options)  # type: ignore[call-overload,no-any-return]

        monkeypatch.setattr(subprocess, "Popen", popen)
        child = EngineProcess.spawn("teller", EngineAddress(tmp_path), Settings(model="x"))
        child.wait(60.0)
    root = Path(rtp_llm.__file__).parent.parent
    assert output.read_text().split() == [expected, os.pathsep.join([str(root), str(tmp_path)])]
