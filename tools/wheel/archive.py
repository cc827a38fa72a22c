# SPDX-License-Identifier: Apache-2.0
"""Writes a wheel's archive so that it depends only on its contents."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

_TIME = (1980, 1, 1, 0, 0, 0)  # the first that a zip archive can hold


def write(path: Path, contents: Mapping[str, bytes], info_folder: str) -> None:
    """Writes `contents` (name -> bytes) and their RECORD, sorted; RECORD is last (PEP 427)."""
    record_name = f"{info_folder}/RECORD"
    records = [_record(name, contents[name]) for name in _ordered(contents, info_folder)]
    record = "".join([*records, f"{record_name},,\n"]).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in _ordered(contents, info_folder):
            archive.writestr(_member(name), contents[name])
        archive.writestr(_member(record_name), record)


def _ordered(contents: Mapping[str, bytes], info_folder: str) -> list[str]:
    return sorted(contents, key=lambda name: (name.startswith(info_folder), name))


def _record(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def _member(name: str) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name, _TIME)
    member.compress_type = zipfile.ZIP_DEFLATED
    member.create_system = 3  # Unix, whatever machine packs: the mode below is read as such
    mode = 0o755 if name.endswith(".so") else 0o644
    member.external_attr = (0o100000 | mode) << 16
    return member
