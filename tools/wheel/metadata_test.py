# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools.wheel import metadata
from tools.wheel.metadata import Selection

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


@pytest.fixture
def wanted(tmp_path: Path) -> Path:
    return tmp_path / "base.in"


def test_requirements_are_the_ranges_of_the_inputs(lock: Path, wanted: Path) -> None:
    text = "# why\n-r other.in\nfastapi>=0.0.1,<0.2  # what for\nPrometheus_Client[x]<1,>=0.1\n"
    wanted.write_text(text + "torch==2.13.0\n")
    assert metadata.requirements([wanted], lock, Selection()) == [
        "fastapi<0.2,>=0.0.1",
        "Prometheus_Client[x]<1,>=0.1",
        f"torch{metadata.TORCH_RANGE}",
    ]


def test_a_requirement_without_pin_is_an_error(lock: Path, wanted: Path) -> None:
    wanted.write_text("uvicorn\n")
    with pytest.raises(KeyError, match="uvicorn"):
        metadata.requirements([wanted], lock, Selection())


def test_a_pin_that_does_not_fit_is_an_error(lock: Path, wanted: Path) -> None:
    wanted.write_text("fastapi>=1\n")
    with pytest.raises(ValueError, match=r"has fastapi 0\.1\.0, which is not fastapi>=1"):
        metadata.requirements([wanted], lock, Selection())


@pytest.mark.parametrize("open_range", ["fastapi", "fastapi>=0.1", "fastapi<1", "fastapi!=0.0.9"])
def test_a_range_that_is_open_is_an_error(lock: Path, wanted: Path, open_range: str) -> None:
    wanted.write_text(f"{open_range}\n")
    with pytest.raises(ValueError, match="give a tested lower and an upper bound"):
        metadata.requirements([wanted], lock, Selection())


def test_names_are_excluded_however_they_are_spelled(lock: Path, wanted: Path) -> None:
    wanted.write_text("NVIDIA_cublas>=1\nnvidia.nccl-cu13\nTriton\nfastapi~=0.1.0\n")
    selection = Selection(excluded=("nvidia-*", "triton"))
    pinned = metadata.requirements([wanted], lock, selection)
    assert pinned == ["fastapi~=0.1.0", f"torch{metadata.TORCH_RANGE}"]


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ("fastapi-slim", "fastapi-slim[all]>=0.1; python_version > '3'"),  # the version is kept
        ("fastapi-slim==0.2.0", "fastapi-slim[all]==0.2.0; python_version > '3'"),  # or replaced
    ],
)
def test_a_new_name_keeps_extras_and_markers(new: str, expected: str) -> None:
    wanted = Requirement("FastAPI[all]>=0.1; python_version > '3'")
    selection = Selection(excluded=("fastapi",), renamed={"fastapi": new})  # the old name
    assert selection.apply(wanted) == Requirement(expected)


def test_a_new_name_is_looked_for_in_the_lock(lock: Path, wanted: Path) -> None:
    wanted.write_text("client[x]>=0.2,<1; sys_platform == 'linux'\n")
    selection = Selection(renamed={"client": "prometheus-client"})
    assert metadata.requirements([wanted], lock, selection)[0] == str(
        Requirement("prometheus-client[x]>=0.2,<1; sys_platform == 'linux'")
    )
    wanted.write_text("client>=0.2,<0.26\n")
    with pytest.raises(ValueError, match=r"has prometheus-client 0\.26\.0, which is not"):
        metadata.requirements([wanted], lock, selection)


def test_source_version(tmp_path: Path) -> None:
    init = tmp_path / "__init__.py"
    init.write_text('"""x"""\n__version__ = "1.2.3"\n')
    assert metadata.source_version(init) == "1.2.3"
    init.write_text("")
    with pytest.raises(ValueError, match="no __version__"):
        metadata.source_version(init)
