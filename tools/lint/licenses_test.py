# SPDX-License-Identifier: Apache-2.0
"""The license line is required, and added in the right place."""

from __future__ import annotations

from pathlib import Path

from tools.lint import licenses


def test_files_without_the_line_are_named_and_get_it(tmp_path: Path) -> None:
    texts = {"a.py": '"""Does a."""\n', "b.cu": "#pragma once\n", "c.py": "#!/usr/bin/env python\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert len(licenses.check(tmp_path)) == 3
    licenses.mend(tmp_path)
    assert licenses.check(tmp_path) == []
    assert (tmp_path / "a.py").read_text() == f'# {licenses.LICENSE}\n"""Does a."""\n'
    assert (tmp_path / "b.cu").read_text() == f"// {licenses.LICENSE}\n#pragma once\n"
    assert (tmp_path / "c.py").read_text().splitlines()[0] == "#!/usr/bin/env python"
    before = (tmp_path / "a.py").read_text()
    licenses.mend(tmp_path)
    assert (tmp_path / "a.py").read_text() == before


def test_what_others_wrote_keeps_its_own(tmp_path: Path) -> None:
    (tmp_path / "3rdparty").mkdir()
    (tmp_path / "3rdparty" / "theirs.py").write_text("")
    assert licenses.check(tmp_path) == []
