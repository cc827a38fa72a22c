# SPDX-License-Identifier: Apache-2.0
"""The file of API keys: what is taken, what is refused, and what a refusal does not say."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from rtp_llm.config.options import SettingsError
from rtp_llm.server.keys.key_file import MAX_BYTES, digest_of, new_key, read_key_file

DIGEST = digest_of(b"sk-one").hex()
FULL = f"""
[[keys]]
name = "team-a"
sha256 = "{DIGEST}"
weight = 2
concurrency = 4
requests_per_minute = 60
tokens_per_minute = 10_000
models = ["demo"]
admin = true
share_cache = "research"
[[keys]]
name = "b"
sha256 = "{digest_of(b"sk-two").hex()}"
"""


def write(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_all_fields(tmp_path: Path) -> None:
    first, second = read_key_file(write(tmp_path / "keys.toml", FULL))
    assert (first.name, first.sha256, first.weight, first.concurrency) == ("team-a", DIGEST, 2.0, 4)
    assert (first.requests_per_minute, first.tokens_per_minute) == (60, 10_000)
    assert first.models == ["demo"] and first.admin
    assert second.weight == 1.0 and second.concurrency is None and second.models is None
    assert not second.admin
    assert (first.share_cache, second.share_cache) == ("research", None)


ONE = f'[[keys]]\nname = "a"\nsha256 = "{DIGEST}"\n'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "missing required field `keys`"),
        ("keys = []", "length >= 1"),
        ("[[keys]", "Expected"),
        (ONE.replace("name", "nam"), r"\$\.keys\[0\]"),
        (ONE.replace(DIGEST, DIGEST[:-1]), r"sha256"),
        (ONE.replace(DIGEST, DIGEST.upper()), r"sha256"),
        (ONE.replace('"a"', '"a b"'), r"name"),
        (ONE.replace('"a"', '"a\\n"'), r"name"),
        (ONE + "weight = 0\n", r"weight"),
        (ONE + "weight = nan\n", r"weight"),
        (ONE + "concurrency = 0\n", r"concurrency"),
        (ONE + 'share_cache = ""\n', r"share_cache"),
        (ONE + 'share_cache = "a\\n"\n', r"share_cache"),
        (ONE + "tokens_per_minute = 1.5\n", r"tokens_per_minute"),
        (ONE + "tokens_per_minut = 1\n", r"tokens_per_minut"),
        (ONE + ONE, "two keys have the name of 'a'"),
        (ONE + ONE.replace('"a"', '"b"'), "two keys have the sha256 of 'a'"),
        ("# " + "x" * MAX_BYTES, "longer than"),
        (ONE * 1001, "length <= 1000"),
    ],
)
def test_refused_without_quoting_digests(tmp_path: Path, text: str, problem: str) -> None:
    path = write(tmp_path / "keys.toml", text)
    with pytest.raises(SettingsError, match=problem) as error:
        read_key_file(path)
    assert str(error.value).startswith("api_key_file: ")
    assert DIGEST[:-1] not in str(error.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_others_may_not_use_it(tmp_path: Path, mode: int) -> None:
    with pytest.raises(SettingsError, match=f"mode {mode:o}.; chmod 600"):
        read_key_file(write(tmp_path / "keys.toml", FULL, mode))


def test_only_plain_files(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read"):
        read_key_file(str(tmp_path / "missing"))
    with pytest.raises(SettingsError, match="not a regular file"):
        read_key_file(str(tmp_path))
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(SettingsError, match="not a regular file"):
        read_key_file(str(tmp_path / "pipe"))
    with pytest.raises(SettingsError, match="cannot read"):
        read_key_file("\0")


def test_a_new_key_and_its_entry(tmp_path: Path) -> None:
    key, entry = new_key("team-a")
    assert key != new_key("team-a")[0] and len(key) > 40
    assert key not in entry
    (read,) = read_key_file(write(tmp_path / "keys.toml", entry))
    assert read.name == "team-a" and read.sha256 == digest_of(key.encode()).hex()
    assert tomllib.loads(entry)["keys"][0]["name"] == "team-a"
    with pytest.raises(SettingsError, match="NAME"):
        new_key('a"')
