# SPDX-License-Identifier: Apache-2.0
"""How a model folder wants its hidden states pooled: the files of sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rtp_llm.model_folder import ModelFilesError, is_there, read_json, read_text, shown
from rtp_llm.request.params import PoolingParams, PoolingType

MODULES = "modules.json"
# Keys of 1_Pooling/config.json, one of which is true, and their names in newer files.
_MODES: dict[str, PoolingType] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
_NAMES: dict[str, PoolingType] = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
_KNOWN = "cls, mean and lasttoken are supported"


def read_pooling(folder: str | Path) -> PoolingParams:
    """The pooling that modules.json and its modules describe: of the last token, normalised, in a
    folder without them.

    Raises ModelFilesError naming the file for what is not supported, and for broken files.
    """
    file = Path(folder) / MODULES
    if not is_there(file):
        return PoolingParams(pooling_type="last", normalize=True)
    pooling: PoolingType | None = None
    normalize = False
    for kind, path in _modules(file):
        if kind == "Pooling":
            pooling = _pooling(file.parent / path / "config.json")
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            raise ModelFilesError(f"{file}: modules of type {kind} are not supported")
    if pooling is None:
        raise ModelFilesError(f"{file} names no Pooling module")
    return PoolingParams(pooling_type=pooling, normalize=normalize)


def _modules(file: Path) -> list[tuple[str, str]]:
    """The last part of the type, and the path, of each module."""
    try:
        modules = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        raise ModelFilesError(f"cannot read {file}: {error}") from error
    if not isinstance(modules, list) or not all(isinstance(each, dict) for each in modules):
        raise ModelFilesError(f"{file} must hold a list of modules")
    found = []
    for each in modules:
        kind, path = each.get("type"), each.get("path", "")
        inside = isinstance(path, str) and ".." not in path.split("/") and path[:1] != "/"
        if not isinstance(kind, str) or not inside:
            raise ModelFilesError(f"{file}: {shown(each)} has no type, or no path in the folder")
        found.append((kind.rpartition(".")[2], path))
    return found


def _pooling(file: Path) -> PoolingType:
    config: dict[str, Any] = read_json(file, required=True)
    if (name := config.get("pooling_mode")) is not None:
        if isinstance(name, str) and name in _NAMES:
            return _NAMES[name]
        raise ModelFilesError(f"{file}: pooling_mode {shown(name)}; {_KNOWN}")
    wanted = [key for key, value in config.items() if key.startswith("pooling_mode_") and value]
    if len(wanted) != 1 or wanted[0] not in _MODES:
        raise ModelFilesError(f"{file}: pooling by {' and '.join(wanted) or 'nothing'}; {_KNOWN}")
    return _MODES[wanted[0]]
