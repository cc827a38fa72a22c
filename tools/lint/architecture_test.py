# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from tools.lint import architecture

_PAGE = """\
1. `rtp_llm/server/app.py`: in.
2. `rtp_llm/ops/norm/norm.py`: down.

| `rtp_llm/server/` | HTTP |
| `rtp_llm/ops/` | operators, see `torch.ops.rtp_llm` |
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("server/app.py", "server/BUILD", "ops/norm/norm.py", "ops/BUILD"):
        (tmp_path / "rtp_llm" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "rtp_llm" / name).touch()
    (tmp_path / "ARCHITECTURE.md").write_text(_PAGE)
    return tmp_path


def test_page_that_fits(root: Path) -> None:
    assert architecture.check(root) == []


def test_missing_file(root: Path) -> None:
    (root / "rtp_llm/ops/norm/norm.py").unlink()
    assert architecture.check(root) == ["ARCHITECTURE.md: rtp_llm/ops/norm/norm.py does not exist"]


def test_unnamed_room(root: Path) -> None:
    (root / "rtp_llm/cellar").mkdir()
    (root / "rtp_llm/cellar/BUILD").touch()
    assert architecture.check(root) == ["ARCHITECTURE.md: the folder cellar/ is not named"]


def test_too_many_files(root: Path) -> None:
    lines = "".join(f"{n}. `rtp_llm/ops/norm/norm.py`: x\n" for n in range(3, 14))
    (root / "ARCHITECTURE.md").write_text(_PAGE + lines)
    assert architecture.check(root) == ["ARCHITECTURE.md: 13 files on a request's way, 1 to 12 fit"]
