from __future__ import annotations

from pathlib import Path

import pytest

from tools.wheel import metadata

_LOCK = """\
# comment
fastapi==0.1.0 \\
    --hash=sha256:00
    # via -r requirements_base.in
prometheus-client==0.26.0 \\
torch===2.13.0 ; python_version > "3"
"""


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "lock.txt"
    path.write_text(_LOCK)
    return path


def test_pins_of(lock: Path) -> None:
    expected = {"fastapi": "0.1.0", "prometheus-client": "0.26.0", "torch": "2.13.0"}
    assert metadata.pins_of(lock) == expected


def test_requirements_are_pinned_as_locked(lock: Path, tmp_path: Path) -> None:
    wanted = tmp_path / "base.in"
    wanted.write_text("# why\nfastapi>=0.0.1  # what for\nPrometheus_Client[x]>=0.1\n")
    assert metadata.requirements(wanted, lock) == [
        "fastapi==0.1.0",
        "Prometheus_Client==0.26.0",
        f"torch{metadata.TORCH_RANGE}",
    ]


def test_a_requirement_without_pin_is_an_error(lock: Path, tmp_path: Path) -> None:
    wanted = tmp_path / "base.in"
    wanted.write_text("uvicorn\n")
    with pytest.raises(KeyError, match="uvicorn"):
        metadata.requirements(wanted, lock)


def test_source_version(tmp_path: Path) -> None:
    init = tmp_path / "__init__.py"
    init.write_text('"""x"""\n__version__ = "1.2.3"\n')
    assert metadata.source_version(init) == "1.2.3"
    init.write_text("")
    with pytest.raises(ValueError, match="no __version__"):
        metadata.source_version(init)
