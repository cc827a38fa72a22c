# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import zipfile
from pathlib import Path

from tools.wheel import archive

_INFO = "p-1.dist-info"
_CONTENTS = {f"{_INFO}/WHEEL": b"w", "p/b.py": b"b" * 1000, "p/a.so": b"a"}


def test_bytes_depend_on_contents_only(tmp_path: Path) -> None:
    archive.write(tmp_path / "1.whl", _CONTENTS, _INFO)
    archive.write(tmp_path / "2.whl", dict(reversed(_CONTENTS.items())), _INFO)
    assert (tmp_path / "1.whl").read_bytes() == (tmp_path / "2.whl").read_bytes()
    archive.write(tmp_path / "3.whl", {**_CONTENTS, "p/b.py": b"c"}, _INFO)
    assert (tmp_path / "1.whl").read_bytes() != (tmp_path / "3.whl").read_bytes()


def test_order_and_modes(tmp_path: Path) -> None:
    archive.write(tmp_path / "1.whl", _CONTENTS, _INFO)
    with zipfile.ZipFile(tmp_path / "1.whl") as made:
        modes = {member.filename: member.external_attr >> 16 & 0o777 for member in made.infolist()}
    assert list(modes) == ["p/a.so", "p/b.py", f"{_INFO}/WHEEL", f"{_INFO}/RECORD"]
    assert (modes["p/a.so"], modes["p/b.py"]) == (0o755, 0o644)
