from __future__ import annotations

from pathlib import Path

from tools.lint import architecture

_PAGE = """\
1. `rtp_llm/server/app.py`: in
2. `rtp_llm/ops/registry.py`: down

| `rtp_llm/server/` | HTTP |
| `rtp_llm/ops/` | operators |
"""


def _tree(root: Path, page: str, *rooms: str) -> Path:
    (root / architecture.PAGE).write_text(page)
    for room in rooms:
        (root / room).mkdir(parents=True)
        (root / room / "BUILD").touch()
    for path in ("rtp_llm/server/app.py", "rtp_llm/ops/registry.py"):
        (root / path).touch()
    return root


def test_a_true_page(tmp_path: Path) -> None:
    assert architecture.check(_tree(tmp_path, _PAGE, "rtp_llm/server", "rtp_llm/ops")) == []


def test_a_missing_file_and_a_missing_room(tmp_path: Path) -> None:
    root = _tree(tmp_path, _PAGE, "rtp_llm/server", "rtp_llm/ops", "rtp_llm/text")
    (root / "rtp_llm/server/app.py").unlink()
    assert architecture.check(root) == [
        "ARCHITECTURE.md: rtp_llm/server/app.py does not exist",
        "ARCHITECTURE.md: the room rtp_llm/text/ has no line",
    ]


def test_an_order_against_the_imports(tmp_path: Path) -> None:
    page = "1. `rtp_llm/ops/registry.py`: up\n2. `rtp_llm/layers/mlp.py`: down\n"
    root = _tree(tmp_path, page, "rtp_llm/server", "rtp_llm/ops", "rtp_llm/layers")
    (root / "rtp_llm/layers/mlp.py").touch()
    complaints = architecture.check(root)
    assert "ARCHITECTURE.md: layers comes after ops, which it may import" in complaints


def test_too_many_files(tmp_path: Path) -> None:
    page = _PAGE + "1. `rtp_llm/ops/registry.py`: again\n" * architecture.MOST_FILES
    root = _tree(tmp_path, page, "rtp_llm/server", "rtp_llm/ops")
    (complaint,) = architecture.check(root)
    assert "lists 14 files" in complaint
