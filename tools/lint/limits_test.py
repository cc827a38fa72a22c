# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
from pathlib import Path

from tools.lint import limits


def _write(root: Path, name: str, text: str = "") -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_many_files_in_a_folder_are_named_and_tests_do_not_count(tmp_path: Path) -> None:
    for number in range(limits.FOLDER_FILES):
        _write(tmp_path, f"few/m{number}.py")
        _write(tmp_path, f"few/m{number}_test.py")
        _write(tmp_path, f"many/m{number}.cc")
    _write(tmp_path, "many/more.h")
    assert limits.advise(tmp_path) == ["many/ has 26 files; 25 are advised"]


def test_long_parameter_lists_are_named_and_where_they_stand_twice(tmp_path: Path) -> None:
    names = ", ".join(f"p{number}" for number in range(limits.PARAMETERS))
    _write(tmp_path, "a.py", f"class A:\n    def fits(self, {names}): ...\n")
    assert limits.advise(tmp_path) == []
    _write(tmp_path, "b.py", f"def f({names}, *, q): ...\n")
    assert limits.advise(tmp_path) == ["b.py:1: f has 9 parameters; 8 are advised"]
    _write(tmp_path, "c.py", f"async def g({names}, q): ...\n")
    assert limits.advise(tmp_path)[-1] == (
        "the same 9 parameters stand in 2 lists: b.py:1: f, c.py:1: g"
    )


def _commit(root: Path, subject: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
    command = ["git", *who, "commit", "--quiet", "--allow-empty", "-m", subject]
    subprocess.run(command, cwd=root, check=True)


def test_the_subject_of_the_latest_commit_has_to_fit(tmp_path: Path) -> None:
    assert limits.check_subject(tmp_path) == []  # an archive of the sources
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    _commit(tmp_path, "x" * 73)
    assert limits.check_subject(tmp_path) == [
        "the commit's subject has 73 characters; at most 72 fit"
    ]
    _commit(tmp_path, "x" * 72)
    assert limits.check_subject(tmp_path) == []
