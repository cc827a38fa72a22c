# SPDX-License-Identifier: Apache-2.0
"""How a model folder wants its hidden states pooled: the files of sentence-transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rtp_llm.gguf import is_gguf, language_model
from rtp_llm.model_folder import ModelFilesError, is_there, read_json, read_text, shown
from rtp_llm.request.params import PoolingParams, PoolingType

MODULES = "modules.json"
_PROMPTS = "config_sentence_transformers.json"
# Keys of 1_Pooling/config.json, one of which is true, and their names in newer files.
_MODES: dict[str, PoolingType] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
_NAMES: dict[str, PoolingType] = {
    "cls": "cls",
    "mean": "mean",
    "max": "max",
    "lasttoken": "last",
    "weightedmean": "weightedmean",
}
_KNOWN = "cls, mean, max, lasttoken and weightedmean are supported"
_ACTIVATIONS: dict[str, Literal["identity", "tanh"]] = {"Identity": "identity", "Tanh": "tanh"}
_LARGEST = 2**20
_GGUF_DENSE = ("dense_2.weight", "dense_3.weight")


@dataclass(frozen=True)
class DenseConfig:
    """A layer that turns pooled vectors of `inputs` numbers into `outputs`; weights in `folder`, or
    of a GGUF file the tensor `weight`."""

    folder: Path
    inputs: int
    outputs: int
    bias: bool
    activation: Literal["identity", "tanh"]
    weight: str = ""


@dataclass(frozen=True)
class PoolingConfig:
    """What a model folder says of embeddings.

    ``params``: of requests that leave it open. ``dense``: layers after pooling. ``matryoshka``: the
    sizes to which embeddings may be cut; empty: any, None: none.
    """

    params: PoolingParams
    dense: tuple[DenseConfig, ...] = ()
    matryoshka: tuple[int, ...] | None = None


def read_pooling(folder: str | Path, otherwise: PoolingType = "last") -> PoolingConfig:
    """What modules.json and its modules describe, or the pooling_type of a GGUF file; a model
    without them is pooled by `otherwise`, normalised.

    Raises ModelFilesError naming the file for what is not supported, and for broken files.
    """
    if is_gguf(folder):
        params = PoolingParams(pooling_type=gguf_pooling(folder) or otherwise, normalize=True)
        return PoolingConfig(params, _gguf_dense(Path(folder)))
    file, matryoshka = Path(folder) / MODULES, _matryoshka(Path(folder) / "config.json")
    if not is_there(file):
        params = PoolingParams(pooling_type=otherwise, normalize=True)
        return PoolingConfig(params, matryoshka=matryoshka)
    modules = read_modules(file)
    kinds = [kind for kind, _ in modules]
    if "Pooling" not in kinds:
        raise ModelFilesError(f"{file} names no Pooling module")
    for kind in kinds:
        if kind not in ("Transformer", "Pooling", "Dense", "Normalize"):
            raise ModelFilesError(f"{file}: modules of type {kind} are not supported")
    normalized, dense = kinds.count("Normalize"), kinds.count("Dense")
    order = ["Transformer", "Pooling", *["Dense"] * dense, *["Normalize"] * normalized]
    if kinds != order or normalized > 1:
        expected = "Transformer, Pooling, then Dense, then at most one Normalize"
        raise ModelFilesError(f"{file}: {', '.join(kinds)}; expected {expected}")
    paths = [file.parent / path for _, path in modules]
    params = PoolingParams(pooling_type=_pooling(paths[1]), normalize=normalized == 1)
    return PoolingConfig(params, tuple(map(_dense, paths[2 : 2 + dense])), matryoshka)


def gguf_pooling(file: str | Path) -> PoolingType | None:
    """How the GGUF file says that embeddings are pooled; None if it leaves that open.

    Raises GgufError for a broken file, or an unknown number.
    """
    kind = language_model(file).metadata.pooling
    return None if kind == "rank" else kind


@dataclass(frozen=True)
class PromptTexts:
    """Texts that sentence-transformers puts before an input, by name ("query", "document", ...).

    ``default``: the name of the one before inputs for which no name is given; None: no text.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None

    def before(self, name: str | None = None) -> str:
        """The text of this name; raises ValueError with the known names."""
        name = self.default if name is None else name
        if name is None:
            return ""
        if name not in self.texts:
            known = ", ".join(self.texts) or "none"
            raise ValueError(f"prompt_name={name!r}: the model has prompts of these names: {known}")
        return self.texts[name]


def read_prompt_texts(folder: str | Path) -> PromptTexts:
    """The prompts of config_sentence_transformers.json; raises ModelFilesError for a broken one."""
    file = Path(folder) / _PROMPTS
    values = read_json(file)
    texts, default = values.get("prompts") or {}, values.get("default_prompt_name")
    if not isinstance(texts, dict) or not all(isinstance(each, str) for each in texts.values()):
        raise ModelFilesError(f"{file}: prompts must be an object of texts; not {shown(texts)}")
    if default is not None and default not in texts:
        raise ModelFilesError(f"{file}: default_prompt_name {shown(default)} is none of prompts")
    return PromptTexts(texts, default)


def read_modules(file: Path) -> list[tuple[str, str]]:
    """The last part of the type, and the path, of each module of a modules.json."""
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


def _pooling(folder: Path) -> PoolingType:
    file = folder / "config.json"
    config: dict[str, Any] = read_json(file, required=True)
    if config.get("include_prompt") is False:
        raise ModelFilesError(f"{file}: include_prompt false is not supported")
    if (name := config.get("pooling_mode")) is not None:
        if isinstance(name, str) and name in _NAMES:
            return _NAMES[name]
        raise ModelFilesError(f"{file}: pooling_mode {shown(name)}; {_KNOWN}")
    wanted = [key for key, value in config.items() if key.startswith("pooling_mode_") and value]
    if len(wanted) != 1 or wanted[0] not in _MODES:
        raise ModelFilesError(f"{file}: pooling by {' and '.join(wanted) or 'nothing'}; {_KNOWN}")
    return _MODES[wanted[0]]


def _gguf_dense(file: Path) -> tuple[DenseConfig, ...]:
    """The layers of a GGUF file, which have neither biases nor activations."""
    tensors = language_model(file).tensors
    found = [tensors[name] for name in _GGUF_DENSE if name in tensors]
    for tensor in found:
        if len(tensor.shape) != 2:
            raise ModelFilesError(
                f"{file}: {tensor.name} is not a matrix: its shape is {list(tensor.shape)}"
            )
    return tuple(
        DenseConfig(file, each.shape[1], each.shape[0], False, "identity", each.name)
        for each in found
    )


def _dense(folder: Path) -> DenseConfig:
    file = folder / "config.json"
    config: dict[str, Any] = read_json(file, required=True)
    name = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    activation = _ACTIVATIONS.get(str(name).rpartition(".")[2])
    if activation is None:
        known = " and ".join(_ACTIVATIONS)
        raise ModelFilesError(f"{file}: activation_function {shown(name)}; {known} are supported")
    inputs, outputs = (_size(file, config, key) for key in ("in_features", "out_features"))
    return DenseConfig(folder, inputs, outputs, config.get("bias", True) is not False, activation)


def _size(file: Path, config: Mapping[str, Any], key: str) -> int:
    size = config.get(key)
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= _LARGEST:
        raise ModelFilesError(f"{file}: {key} must be a positive integer; not {shown(size)}")
    return size


def _matryoshka(file: Path) -> tuple[int, ...] | None:
    """The sizes that config.json names, under vLLM's names."""
    config = read_json(file)
    sizes = config.get("matryoshka_dimensions")
    if sizes is None:
        return () if config.get("is_matryoshka") is True else None
    if not isinstance(sizes, list) or not all(type(size) is int and size > 0 for size in sizes):
        raise ModelFilesError(
            f"{file}: matryoshka_dimensions must be a list of positive integers; not {shown(sizes)}"
        )
    return tuple(sizes)
