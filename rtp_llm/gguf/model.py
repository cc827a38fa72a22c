# SPDX-License-Identifier: Apache-2.0
"""A model in one GGUF file or in several, NAME-00001-of-00003.gguf and so on."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from rtp_llm.gguf.cursor import GgufError
from rtp_llm.gguf.file import GgufFile, GgufTensor, read_file
from rtp_llm.gguf.metadata import Metadata
from rtp_llm.model_folder import name_of

_SUFFIX = ".gguf"
# What files beside a model's own hold; they have no language model.
_TYPE, _MODEL = "general.type", "model"
_PROJECTOR = "clip"
_RECIPE = "general.file_type"
RECIPES = {
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    25: "IQ4_NL",
    30: "IQ4_XS",
    32: "BF16",
    38: "MXFP4_MOE",
}
_PART = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})\.gguf")
_NUMBER, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"


@dataclass(frozen=True)
class GgufModel:
    """The tensors of all files by name, in file order, and the metadata of the first file."""

    files: tuple[Path, ...]
    metadata: Metadata
    tensors: dict[str, GgufTensor]

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.size for tensor in self.tensors.values())

    @property
    def num_weights(self) -> int:
        """Weights of all tensors."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    @property
    def recipe(self) -> str:
        """How the types of tensors were chosen, such as Q4_K_M, or the type of most bytes: of files
        whose tensors were converted since, and that still name the recipe of before."""
        sizes: Counter[str] = Counter()
        for tensor in self.tensors.values():
            sizes[tensor.type.name] += tensor.size
        known = RECIPES.get(self.metadata.integer(_RECIPE) or 0, "")
        if any(known == name or known.startswith(f"{name}_") for name in sizes):
            return known
        return next((name for name, _ in sizes.most_common(1)), "")


def open_model(path: Path) -> GgufModel:
    """Read the headers of the file, or of all parts if it is one. Raises GgufError."""
    first = read_file(path)
    count = first.metadata.integer(_COUNT) or 1
    parts = [first] if count == 1 else _parts(first, count)
    tensors: dict[str, GgufTensor] = {}
    for part in parts:
        for tensor in part.tensors:
            other = tensors.setdefault(tensor.name, tensor)
            if other is not tensor:
                name = name_of(tensor.name)
                raise GgufError(f"{name} is in {other.file} and again in {tensor.file}")
    stated = parts[0].metadata.integer(_TENSORS)
    if stated is not None and stated != len(tensors):
        raise GgufError(f"{parts[0].path} states {stated} tensors; its parts have {len(tensors)}")
    return GgufModel(tuple(part.path for part in parts), parts[0].metadata, tensors)


def is_gguf(path: str | Path) -> bool:
    """Whether the place of a model is a GGUF file, and not a folder."""
    place = Path(path)
    return place.suffix.lower() == _SUFFIX and not place.is_dir()


def language_model(path: str | Path) -> GgufModel:
    """`open_model` of a file with a language model; kept until another one is opened or the file
    changes.

    Raises GgufError, also for files with something else, such as an image encoder or an adapter.
    """
    place = Path(path).absolute()
    try:
        status = place.stat()
    except OSError as error:
        raise GgufError(f"cannot read {place}: {error.strerror or error}") from error
    return _language_model(place, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=1)
def _language_model(path: Path, _modified: int, _size: int) -> GgufModel:
    model = open_model(path)
    kind = model.metadata.text(_TYPE)
    if model.metadata.architecture == _PROJECTOR or kind not in (None, _MODEL):
        found = name_of(kind or _PROJECTOR)
        raise GgufError(
            f"{path} holds no language model ({_TYPE} is {found}); give the file of the model"
        )
    return model


def _parts(found: GgufFile, count: int) -> list[GgufFile]:
    """All parts in order; `found` is any one of them."""
    match = _PART.fullmatch(found.path.name)
    if match is None or int(match[3]) != count:
        form = f"NAME-00001-of-{count:05}.gguf"
        raise GgufError(
            f"{found.path} is one of {count} parts: it must be named like {form}, next to the rest"
        )
    parts = []
    for number in range(count):
        path = found.path.with_name(f"{match[1]}-{number + 1:05}-of-{match[3]}.gguf")
        part = found if path == found.path else read_file(path)
        stated = part.metadata.integer(_NUMBER), part.metadata.integer(_COUNT)
        if stated != (number, count):
            raise GgufError(f"{path} is part {stated[0]} of {stated[1]}; not {number} of {count}")
        parts.append(part)
    return parts
