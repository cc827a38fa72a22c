# SPDX-License-Identifier: Apache-2.0
"""Files of keys, and the header that sends one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rtp_llm.server.keys.key_file import digest_of


def entry(key: str, name: str, **fields: Any) -> str:
    lines = [f"{field} = {str(value).lower()}" for field, value in fields.items()]
    digest = digest_of(key.encode()).hex()
    return "\n".join(["[[keys]]", f'name = "{name}"', f'sha256 = "{digest}"', *lines, ""])


def key_file(path: Path, *entries: str) -> str:
    path.write_text("".join(entries))
    path.chmod(0o600)
    return str(path)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}
