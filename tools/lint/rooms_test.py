# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from tools.lint import rooms


@pytest.fixture(name="root")
def _root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(rooms, "ROOMS", {"rtp_llm/shop": ("stock", "till", ".")})
    monkeypatch.setattr(rooms, "APART", ("rtp_llm/shop/till",))
    return tmp_path


def _write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / "rtp_llm" / "shop" / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_imports_may_go_down(root: Path) -> None:
    _write(
        root,
        stock__shelf="",
        till__coins__coin="from rtp_llm.shop.stock import shelf\n",
        door="from rtp_llm.shop.till.coins import coin\nfrom rtp_llm.shop.stock import shelf\n",
    )
    assert not rooms.check(root)


def test_imports_may_not_go_up(root: Path) -> None:
    _write(
        root,
        stock__shelf="def f():\n    from rtp_llm.shop.till import receipt\n",
        till__receipt="from rtp_llm.shop import door\n",
        door="",
    )
    assert rooms.check(root) == [
        "rtp_llm.shop.stock.shelf imports rtp_llm.shop.till.receipt, which is above it",
        "rtp_llm.shop.till.receipt imports rtp_llm.shop.door, which is above it",
    ]


def test_known_upward_imports_are_counted_and_go_when_they_are_gone(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(root, stock__shelf="from rtp_llm.shop.till import receipt\n", till__receipt="")
    known = ("rtp_llm.shop.stock.shelf", "rtp_llm.shop.till.receipt")
    monkeypatch.setattr(rooms, "UPWARD", frozenset({known}))
    assert not rooms.check(root)
    monkeypatch.setattr(rooms, "MAX_UPWARD", 0)
    assert rooms.check(root) == ["1 imports go upward; at most 0 may"]
    _write(root, stock__shelf="")
    assert f"{known[0]} does not import {known[1]} any more" in rooms.check(root)


def test_folders_that_are_apart_do_not_import_each_other(root: Path) -> None:
    _write(
        root, till__coins__coin="", till__notes__note="from rtp_llm.shop.till.coins import coin\n"
    )
    (complaint,) = rooms.check(root)
    assert complaint.startswith("rtp_llm.shop.till.notes.note imports rtp_llm.shop.till.coins.coin")


def test_no_two_folders_import_each_other(root: Path) -> None:
    _write(
        root,
        other__a="from rtp_llm.shop.more import c\n",
        other__b="",
        more__c="",
        more__d="from rtp_llm.shop.other import b\n",
    )
    (complaint,) = rooms.check(root)
    assert complaint.startswith("rtp_llm/shop/more and rtp_llm/shop/other import each other: ")


def test_a_folder_and_one_within_it_may(root: Path) -> None:
    _write(
        root,
        other__a="from rtp_llm.shop.other.deep import c\n",
        other__b="",
        other__deep__c="from rtp_llm.shop.other import b\n",
    )
    assert not rooms.check(root)
