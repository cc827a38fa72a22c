# SPDX-License-Identifier: Apache-2.0
"""Packages of one virtual environment in another, by hard links."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path

_PINNED = re.compile(r"^([\w.-]+)==", re.MULTILINE)
# A first line with the interpreter's path may be too long for Linux, and may hold no space.
_RUN_BY = "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n"


def link_packages(lock: Path, source: Path, target: Path) -> None:
    """Give the environment `target` those packages of a lock, and pip, that `source` has.

    `source` and `target` are the site-packages folders of environments with the same interpreter.
    pip replaces files and never writes into them, so a package that is changed in one environment
    stays as it is in the other. On another file system the files are copied. Packages that `source`
    lacks are not meant for this machine: pip installed the whole lock there.
    """
    source, target = source.resolve(), target.resolve()
    for name in ["pip", *_PINNED.findall(lock.read_text())]:
        for found in metadata.distributions(name=name, path=[str(source)]):
            for path in _files(found, source):
                _link(path, Path(os.path.normpath(target / os.path.relpath(path, source))))


def _files(found: metadata.Distribution, packages: Path) -> Iterator[Path]:
    """A package's files, with the compiled modules that there are by now."""
    for listed in found.files or []:
        path = Path(os.path.normpath(packages / listed))
        yield path
        if path.suffix == ".py" and (compiled := Path(util.cache_from_source(path))).exists():
            yield compiled


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.parent.name == "bin" and (script := _script(source, target.parent / "python")):
        target.write_text(script)
        shutil.copymode(source, target)
        return
    try:
        os.link(source, target)
    except FileExistsError:
        pass  # listed twice
    except OSError:
        shutil.copy2(source, target)


def _script(source: Path, python: Path) -> str | None:
    """A program for the interpreter `python`; None if `source` is not one that pip wrote."""
    content = source.read_bytes()
    if not content.startswith(b"#!") or str(source.parent / "python").encode() not in content:
        return None
    text = content.decode()
    lines = 3 if text.startswith("#!/bin/sh\n") else 1
    return _RUN_BY.format(python=python) + text.split("\n", lines)[lines]
