# SPDX-License-Identifier: Apache-2.0
"""Reads the small files of a model folder, which are untrusted: within bounds, never blocking.

Every error is a ModelFilesError that names the file. Links are followed as usual (the cache of
huggingface_hub consists of them); their target has to be a regular file.
"""

from __future__ import annotations

import codecs
import json
import math
import os
import reprlib
import stat
from pathlib import Path
from typing import Any, BinaryIO

_MIB = 2**20
CONFIG, PARAMS = "config.json", "params.json"
# The largest size of a file in bytes; published files stay below a tenth of it.
LIMITS = {
    "config.json": 4 * _MIB,
    "generation_config.json": 4 * _MIB,
    "tokenizer_config.json": 64 * _MIB,
    "special_tokens_map.json": 64 * _MIB,
    "chat_template.json": 4 * _MIB,
    "chat_template.jinja": 4 * _MIB,
    "tokenizer.json": 512 * _MIB,
    "tekken.json": 128 * _MIB,
    "model.safetensors.index.json": 256 * _MIB,
    "consolidated.safetensors.index.json": 256 * _MIB,
}
_OTHER_LIMIT = 4 * _MIB
_LONGEST_SHOWN = 200
_LONGEST_NAME = 150
_HIGHEST_ID = 2**31 - 1

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class ModelFilesError(ValueError):
    """A file of the model folder is missing or cannot be used; the message names it."""


def is_there(path: Path) -> bool:
    """Whether the folder has an entry of this name, be it a link to nothing."""
    return os.path.lexists(path)


def config_file(folder: Path) -> Path:
    """config.json, or the params.json of a folder in Mistral's own layout, which has none."""
    config, params = folder / CONFIG, folder / PARAMS
    return params if is_there(params) and not is_there(config) else config


def is_mistral(folder: Path) -> bool:
    """Whether a folder is in Mistral's own layout only."""
    return config_file(folder).name == PARAMS


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading, unbuffered; raises ModelFilesError for anything else."""
    try:
        _check_kind(path, path.stat().st_mode)
        # A file that was replaced by a pipe in the meantime must not block either.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            _check_kind(path, os.fstat(handle).st_mode)
            return os.fdopen(handle, "rb", buffering=0)
        except BaseException:
            os.close(handle)
            raise
    except FileNotFoundError as error:
        reason = "it is a link to nothing" if is_there(path) else "it is missing"
        raise ModelFilesError(f"cannot read {path}: {reason}") from error
    except OSError as error:
        raise ModelFilesError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        if isinstance(error, ModelFilesError):
            raise
        raise ModelFilesError(f"cannot read {path}: {error}") from error


def read_bytes(path: Path) -> bytes:
    """The content of a file of the folder, of at most the size in LIMITS."""
    limit = LIMITS.get(path.name, _OTHER_LIMIT)
    parts: list[bytes] = []
    length = 0
    with open_file(path) as file:
        try:
            while length <= limit and (part := file.read(limit + 1 - length)):
                parts.append(part)
                length += len(part)
        except OSError as error:
            raise ModelFilesError(f"cannot read {path}: {error.strerror or error}") from error
    if length > limit:
        raise ModelFilesError(f"cannot read {path}: it is longer than {limit} bytes")
    return b"".join(parts)


def read_text(path: Path) -> str:
    """The UTF-8 text of a file, without a leading byte order mark."""
    try:
        return read_bytes(path).removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        raise ModelFilesError(f"cannot read {path}: it is not UTF-8: {error}") from error


def read_json(path: Path, *, required: bool = False) -> dict[str, Any]:
    """The JSON object in a file; {} if the file is missing and not `required`."""
    if not required and not is_there(path):
        return {}
    return parse_json(read_text(path), path)


def parse_json(text: str | bytes, where: Path | str) -> dict[str, Any]:
    """The JSON object in a text; raises ModelFilesError naming `where` it is from."""
    try:
        content = json.loads(text)
    except RecursionError:
        raise ModelFilesError(f"cannot read {where}: it is nested too deeply") from None
    except ValueError as error:
        raise ModelFilesError(f"cannot read {where}: {error}") from error
    if not isinstance(content, dict):
        raise ModelFilesError(f"{where} must hold a JSON object, not {type(content).__name__}")
    return content


def finite(value: object) -> float | None:
    """A JSON number as a float; None for booleans, other types, NaN and numbers out of range."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def token_ids(file: Path, key: str, value: object) -> tuple[int, ...]:
    """The token ids in `value` of `key` in `file`: one id, a list of ids or, for null, none.

    Raises ModelFilesError naming file and key.
    """
    listed = value if isinstance(value, list) else [] if value is None else [value]
    for item in listed:
        if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item <= _HIGHEST_ID:
            raise ModelFilesError(
                f"{file}: {key} must be a token id or a list of them; not {shown(value)}"
            )
    return tuple(listed)


def shown(value: object) -> str:
    """`value` for a message: as Python writes it, cut to 200 characters."""
    text = _SHORT.repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


def name_of(text: str) -> str:
    """A name from a file for a message: unchanged if it is short and printable."""
    return text if text.isprintable() and len(text) <= _LONGEST_NAME else shown(text)


def _short() -> reprlib.Repr:
    short = reprlib.Repr()
    short.maxlevel = 3
    short.maxstring = short.maxother = 100
    return short


_SHORT = _short()


def _check_kind(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "no ordinary file")
        raise ModelFilesError(f"cannot read {path}: it is {kind}")
