# SPDX-License-Identifier: Apache-2.0
"""The keys of a GGUF model's architecture, read by type."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rtp_llm.gguf import GgufModel
from rtp_llm.models.raw_config import ModelConfigError

# A number, or one for each layer.
Numbers = int | list[int]


class GgufKeys:
    """Keys without the architecture's name, such as "block_count". Raises GgufError for a value of
    another type."""

    def __init__(self, model: GgufModel) -> None:
        self.model, self.metadata = model, model.metadata

    def integer(self, key: str) -> int | None:
        """The integer of `key`, also if each layer has the same one; None without the key.

        Raises ModelConfigError if layers differ.
        """
        listed = self.listed(key)
        if not isinstance(listed, list):
            return listed
        if len(set(listed)) > 1:
            raise self.error(key, "is not the same in all layers")
        return listed[0] if listed else None

    def first(self, key: str) -> int | None:
        """The integer of `key`, or that of the first layer; None without the key."""
        listed = self.listed(key)
        return next(iter(listed), None) if isinstance(listed, list) else listed

    def listed(self, key: str) -> Numbers | None:
        """The integer of `key`, or those of all layers; None without the key."""
        name = self.metadata.of_model(key)
        found = self.metadata.values.get(name)
        if not isinstance(found, np.ndarray):
            return self.metadata.integer(name)
        if found.dtype.kind not in "iub":
            raise self.error(key, "must hold integers")
        return [int(each) for each in found]

    def needed(self, key: str) -> int:
        """The integer of `key`; ModelConfigError without it."""
        found = self.integer(key)
        if found is None:
            raise self.error(key, "is missing")
        return found

    def number(self, key: str) -> float | None:
        """The finite number of `key`; None without it."""
        return self.metadata.number(self.metadata.of_model(key))

    def flag(self, key: str) -> bool | None:
        """The boolean of `key`; None without it."""
        return self.metadata.flag(self.metadata.of_model(key))

    def text(self, key: str) -> str | None:
        """The text of `key`; None without it."""
        return self.metadata.text(self.metadata.of_model(key))

    def shape(self, tensor: str) -> tuple[int, ...] | None:
        """The shape of a tensor; None without it."""
        found = self.model.tensors.get(tensor)
        return None if found is None else found.shape

    def size(self, axis: int, tensors: Sequence[str]) -> int | None:
        """The size of `axis` of the first of `tensors` that the file has."""
        shapes = (self.shape(tensor) for tensor in tensors)
        return next((each[axis] for each in shapes if each and -len(each) <= axis), None)

    def error(self, key: str, problem: str) -> ModelConfigError:
        """The error that says what is wrong with `key`."""
        return ModelConfigError(f"{self.metadata.file}: {self.metadata.of_model(key)} {problem}")
