# SPDX-License-Identifier: Apache-2.0
"""A short name for a model folder's content, equal on two machines when the files are."""

from __future__ import annotations

import hashlib
from pathlib import Path

from rtp_llm.gguf import is_gguf, language_model

_SAMPLE_BYTES = 64 * 1024


def model_digest(folder: str | Path) -> str:
    """16 hexadecimal digits over config.json and, of each weights or GGUF file, size and three
    samples.

    Whole files would take minutes to read; another training run changes every sample.
    """
    digest = hashlib.blake2b(digest_size=8)
    folder = Path(folder)
    if is_gguf(folder):
        files = list(language_model(folder).files)
    else:
        digest.update((folder / "config.json").read_bytes())
        files = sorted(folder.glob("*.safetensors"))
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}".encode())
        with path.open("rb") as file:
            for start in (0, size // 2, max(0, size - _SAMPLE_BYTES)):
                file.seek(start)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
