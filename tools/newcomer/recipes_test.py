# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from tools.newcomer import recipes

PAGE = """\
# Page

## One

Write

```python title=a/b.py
x = 1
```

and say so:

```diff title=rows.txt
 first
+second
 third
```

```console
$ python -m pytest a
passed
$ ls
```

### Below

text

## Other

```diff title=rows.txt
-first
...
 third
+fourth
```
"""


def test_a_section_ends_where_the_next_begins() -> None:
    assert "### Below\n\ntext" in recipes.section(PAGE, "One")
    assert "fourth" not in recipes.section(PAGE, "One")
    with pytest.raises(recipes.RecipeError, match="0 headings 'Two'"):
        recipes.section(PAGE, "Two")


def test_files_are_written_and_changed(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("zeroth\nfirst\nthird\n")
    touched = recipes.follow(recipes.section(PAGE, "One"), tmp_path)
    assert touched == [Path("a/b.py"), Path("rows.txt")]
    assert (tmp_path / "a/b.py").read_text() == "x = 1\n"
    assert (tmp_path / "rows.txt").read_text() == "zeroth\nfirst\nsecond\nthird\n"
    recipes.follow(recipes.section(PAGE, "Other"), tmp_path)
    assert (tmp_path / "rows.txt").read_text() == "zeroth\nsecond\nthird\nfourth\n"
    assert recipes.commands(recipes.section(PAGE, "One")) == ["python -m pytest a", "ls"]


def test_a_page_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    one = recipes.section(PAGE, "One")
    (tmp_path / "rows.txt").write_text("first\n\nthird\n")
    with pytest.raises(recipes.RecipeError, match=r"rows.txt has 0 times:\nfirst\nthird"):
        recipes.follow(one, tmp_path)
    with pytest.raises(recipes.RecipeError, match=r"a/b.py is there already"):
        recipes.follow(one, tmp_path)


def test_a_copy_has_nothing_that_tools_have_put_there(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for made in (".venv", ".clients", "bazel-bin", "dist", "tools/agents/node_modules"):
        (tree / made).mkdir(parents=True)
        (tree / made / "made.py").touch()
    for source in ("dev", "tools/source.py"):
        (tree / source).touch()
    copy = recipes.copy_of(tree, tmp_path / "copy")
    files = [path.relative_to(copy) for path in copy.rglob("*") if path.is_file()]
    assert sorted(map(str, files)) == ["dev", "tools/source.py"]
