"""Makes a virtual environment from hashed locks; run by repository rules.

    python -I environment.py [--cache FOLDER] [--index URL] PLACE LOCK...

PLACE becomes the environment; with --cache it becomes a link to one that all builds of this user
share, named by what is in it: the locks and the interpreter. A virtual environment holds its own
path, so it is made where it stays: under a lock, and nobody takes it before its last file is there.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

_LAYOUT = "1"  # another number whenever the folder's contents or pip's options change
_DONE = "complete"  # its time of change is when the environment was last asked for
_USERS = "users"  # one link per line
_UNUSED_DAYS = 14


def main() -> int:
    """Exit code; a failed pip has said why on standard error."""
    options = _options()
    try:
        if options.cache:
            _take_cached(options.cache / "environments", options)
        else:
            _make(options.place, options.lock, options.index)
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    return 0


def _take_cached(cache: Path, options: argparse.Namespace) -> None:
    folder = cache / _key(options.lock)
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        if not (folder / _DONE).exists():
            shutil.rmtree(folder, ignore_errors=True)  # what an interrupted build left
            _make(folder, options.lock, options.index)
        (folder / _DONE).touch()
        _link(options.place, folder)
        with (folder / _USERS).open("a") as users:
            users.write(f"{options.place}\n")
    for other in cache.iterdir():
        if other.is_dir() and other != folder:
            _remove_unused(other)


def _key(locks: Sequence[Path]) -> str:
    parts = (_LAYOUT, sys.executable, sys.version, os.uname().machine)
    digest = hashlib.sha256("\n".join(parts).encode())
    for lock in locks:
        digest.update(lock.read_bytes())
    return f"{locks[0].stem}-{digest.hexdigest()[:16]}"


@contextlib.contextmanager
def _locked(folder: Path, *, wait: bool = True) -> Iterator[bool]:
    """Holds the lock of an environment; yields False when another has it and `wait` is off."""
    with folder.with_name(folder.name + ".lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _make(folder: Path, locks: Sequence[Path], index: str) -> None:
    """CalledProcessError when the environment or its packages are not to be had."""
    folder.mkdir(parents=True, exist_ok=True)
    venv = folder / "venv"
    python = str(venv / "bin" / "python3")
    _run([sys.executable, "-m", "venv", "--clear", str(venv)])
    pip = [python, "-m", "pip", "install", "--quiet", "--no-compile", "--only-binary", ":all:"]
    pip += ["--no-warn-script-location", "--disable-pip-version-check", "--require-hashes"]
    pip += ["--extra-index-url", index] if index else []
    _run([*pip, *(word for lock in locks for word in ("-r", str(lock)))])
    # A name without the python3.11 in its path.
    (packages,) = venv.glob("lib/python3.*/site-packages")
    _link(folder / "site-packages", packages)
    shutil.copyfile(locks[0], folder / "runtime_lock.txt")
    # The folder can stand in for the repository that links to it: --override_repository.
    (folder / "WORKSPACE").touch()
    (folder / "BUILD.bazel").touch()


def _run(command: Sequence[str]) -> None:
    subprocess.run(
        command, check=True, stdout=sys.stderr, env={**os.environ, "PIP_REQUIRE_VIRTUALENV": "0"}
    )


def _link(place: Path, target: Path) -> None:
    place.unlink(missing_ok=True)
    place.symlink_to(target)


def _remove_unused(folder: Path) -> None:
    """Removes an environment that no repository links to and nobody asked for lately."""
    with _locked(folder, wait=False) as free:
        done = folder / _DONE
        if not free or not done.exists():
            return
        users = [Path(line) for line in (folder / _USERS).read_text().splitlines()]
        if any(user.is_symlink() and user.readlink() == folder for user in users):
            return
        if time.time() - done.stat().st_mtime > _UNUSED_DAYS * 24 * 3600:
            done.unlink()
            shutil.rmtree(folder)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--index", default="")
    parser.add_argument("place", type=Path)
    parser.add_argument("lock", type=Path, nargs="+")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
