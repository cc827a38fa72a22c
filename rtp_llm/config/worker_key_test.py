# SPDX-License-Identifier: Apache-2.0
"""The file with the workers' key."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rtp_llm.config.options import SettingsError
from rtp_llm.config.roles import check_role
from rtp_llm.config.settings import Settings
from rtp_llm.config.worker_key import LONGEST_BYTES, read_worker_key

GOOD = b"0123456789abcdef"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "key"
    made.write_bytes(GOOD)
    made.chmod(0o600)
    return made


@pytest.mark.parametrize(
    "content", [GOOD, GOOD + b"\n", b" " + GOOD + b"\r\n", bytes(range(128, 192))]
)
def test_white_space_around_it_is_left_out(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    assert read_worker_key(str(file)) == content.strip()


@pytest.mark.parametrize("content", [b"", GOOD[1:] + b"\n", b"x" * (LONGEST_BYTES + 1)])
def test_its_length_is_bounded(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(SettingsError, match=r"worker_key_file: .* not 16 to 4096; make one with"):
        read_worker_key(str(file))


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o666])
def test_what_everybody_reads_is_no_secret(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(SettingsError, match=rf"mode {mode:o}\); chmod 600"):
        read_worker_key(str(file))


def test_what_is_no_file_is_refused(file: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path, words in (
        (tmp_path / "pipe", "not a regular file"),
        (tmp_path / "nothing", "No such file"),
        (tmp_path, "not a regular file"),
        ("a\0b", "null"),
    ):
        with pytest.raises(SettingsError, match=f"worker_key_file: .*{words}"):
            read_worker_key(str(path))


def test_the_start_reads_it(file: Path) -> None:
    settings = {"model": "m", "role": "prefill", "worker_key_file": str(file)}
    check_role(Settings(**settings))
    file.write_bytes(b"short")
    with pytest.raises(SettingsError, match="has 5 bytes"):
        check_role(Settings(**settings))
    with pytest.raises(SettingsError, match="kv_transfer_address: '9'"):
        check_role(Settings(model="m", role="prefill", kv_transfer_address="9"))
