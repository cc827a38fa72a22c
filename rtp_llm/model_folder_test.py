# SPDX-License-Identifier: Apache-2.0
"""Tests of reading the small files of a folder that may hold anything."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from rtp_llm import model_folder
from rtp_llm.model_folder import ModelFilesError, finite, read_json, read_text, shown


def test_objects_are_read_with_and_without_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_json(file) == {"a": 1}
    (tmp_path / "blob").write_text('{"a": 2}')
    file.unlink()
    file.symlink_to("blob")  # as in the cache of huggingface_hub
    assert read_json(file) == {"a": 2}
    assert read_json(tmp_path / "none.json") == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "Expecting"),
        (b"[]", "must hold a JSON object, not list"),
        (b'{"a": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "digits"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b"\xff\xfe{\x00}\x00", "not UTF-8"),
        (b"", "Expecting value"),
        (b" " * (4 * 2**20 + 1), "longer than 4194304 bytes"),
    ],
)
def test_broken_content_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(ModelFilesError, match=message) as caught:
        read_json(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", "it is missing"),
        ("directory", "it is a directory"),
        ("pipe", "it is a named pipe"),
        ("socket", "it is a socket"),
        ("device", "it is a device"),
        ("loop", "symbolic links"),
        ("dangling", "it is a link to nothing"),
        ("under a file", "Not a directory"),
    ],
)
def test_what_is_no_ordinary_file_is_refused_at_once(
    tmp_path: Path, kind: str, message: str
) -> None:
    file = tmp_path / "config.json"
    if kind == "directory":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "socket":
        listener = socket.socket(socket.AF_UNIX)
        directory = os.open(tmp_path, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{directory}/config.json")
        os.close(directory)
        listener.close()
    elif kind == "device":
        file.symlink_to("/dev/zero")
    elif kind == "loop":
        file.symlink_to("config.json")
    elif kind == "dangling":
        file.symlink_to("nowhere")
    elif kind == "under a file":
        (tmp_path / "file").touch()
        file = tmp_path / "file" / "config.json"
    with pytest.raises(ModelFilesError, match=message) as caught:
        read_text(file)
    assert str(file) in str(caught.value)
    if kind not in ("missing", "under a file"):
        with pytest.raises(ModelFilesError, match=message):
            read_json(file)


def test_a_file_that_became_a_pipe_does_not_block(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "config.json"
    os.mkfifo(file)
    real = model_folder._check_kind
    calls: list[int] = []

    def second_time_only(path: Path, mode: int) -> None:
        calls.append(mode)
        if len(calls) > 1:
            real(path, mode)

    monkeypatch.setattr(model_folder, "_check_kind", second_time_only)
    with pytest.raises(ModelFilesError, match="a named pipe"):
        read_text(file)


def test_values_are_shown_briefly() -> None:
    deep: list[object] = []
    for _ in range(500):
        deep = [deep]
    for value in (deep, "x" * 10**6, 10**4000, {str(n): n for n in range(10**4)}, "\ud800" * 100):
        assert len(shown(value)) <= 200
        shown(value).encode()
    assert shown("many") == "'many'"


def test_finite_numbers() -> None:
    assert finite(3) == 3.0
    assert finite(1e-7) == 1e-7
    for value in (None, True, "1", float("nan"), float("inf"), 10**400, [1]):
        assert finite(value) is None
