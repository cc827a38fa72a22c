# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from tools.lint import cycles


def _package(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / "rtp_llm" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    "back",
    [
        "from rtp_llm.a import x\n",
        "import rtp_llm.a\n",
        "from rtp_llm import a\n",
        "def f():\n    from rtp_llm.a import x\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from rtp_llm.a import x\n",
    ],
)
def test_a_cycle_is_found_wherever_the_import_stands(tmp_path: Path, back: str) -> None:
    root = _package(tmp_path, {"a": "from rtp_llm import b\n", "b": back})
    assert cycles.check(root) == ["import cycle: rtp_llm.a -> rtp_llm.b -> rtp_llm.a"]


def test_each_cycle_is_shown_once_by_its_shortest_way(tmp_path: Path) -> None:
    root = _package(
        tmp_path,
        {
            "a": "from rtp_llm.room import b\n",
            "room/b": "from rtp_llm import a, c\n",
            "c": "from rtp_llm import a\n",
            "d": "from rtp_llm import a, e\n",
            "e": "from rtp_llm import d\n",
        },
    )
    assert cycles.check(root) == [
        "import cycle: rtp_llm.a -> rtp_llm.room.b -> rtp_llm.a",
        "import cycle: rtp_llm.d -> rtp_llm.e -> rtp_llm.d",
    ]


def test_tests_and_packages_above_make_no_cycle(tmp_path: Path) -> None:
    root = _package(
        tmp_path,
        {
            "room/__init__": "from rtp_llm.room.a import x\n",
            "room/a": "from rtp_llm.room.b import x\n",
            "room/b": "x = 1\n",
            "room/b_test": "from rtp_llm.room import a_test\n",
            "room/a_test": "from rtp_llm.room import b_test\n",
        },
    )
    assert cycles.check(root) == []


def test_a_package_that_its_modules_ask_is_a_cycle(tmp_path: Path) -> None:
    root = _package(
        tmp_path,
        {
            "room/__init__": "from rtp_llm.room.a import x\n",
            "room/a": "from rtp_llm.room import y\n",
        },
    )
    assert cycles.check(root) == ["import cycle: rtp_llm.room -> rtp_llm.room.a -> rtp_llm.room"]
