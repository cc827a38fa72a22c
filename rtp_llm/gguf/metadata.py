# SPDX-License-Identifier: Apache-2.0
"""The metadata of a GGUF file, asked for by key and type."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np

from rtp_llm.gguf.cursor import GgufError
from rtp_llm.gguf.values import Texts, Value
from rtp_llm.model_folder import name_of, shown

ARCHITECTURE = "general.architecture"
Pooling = Literal["mean", "cls", "last", "rank"]
# By the numbers of pooling_type; 0 leaves it open.
_POOLINGS: tuple[Pooling | None, ...] = (None, "mean", "cls", "last", "rank")


class Metadata:
    """Key -> value as in `file`. Values of another type than asked for raise GgufError."""

    def __init__(self, file: Path, values: Mapping[str, Value]) -> None:
        self.file, self.values = file, values

    def __contains__(self, key: str) -> bool:
        return key in self.values

    @property
    def architecture(self) -> str:
        """The name of the model's architecture, which the model's other keys begin with."""
        found = self.text(ARCHITECTURE)
        if found is None:
            raise GgufError(f"{self.file} does not say its architecture ({ARCHITECTURE})")
        return found

    @property
    def pooling(self) -> Pooling | None:
        """How the model pools the states of tokens; "rank": a head gives scores. None: it is open.

        Raises GgufError for a number that is not known.
        """
        key = self.of_model("pooling_type")
        number = self.integer(key) or 0
        if not 0 <= number < len(_POOLINGS):
            raise GgufError(f"{self.file}: {key} must be an integer from 0 to 4; not {number}")
        return _POOLINGS[number]

    def of_model(self, key: str) -> str:
        """The key under which the model has `key`, such as llama.block_count."""
        return f"{self.architecture}.{key}"

    def text(self, key: str) -> str | None:
        """The text of `key`; None without one."""
        value = self.values.get(key)
        if value is None or isinstance(value, str):
            return value
        raise self._wrong(key, "a text", value)

    def integer(self, key: str) -> int | None:
        """The integer of `key`; None without one."""
        value = self.values.get(key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise self._wrong(key, "an integer", value)

    def number(self, key: str) -> float | None:
        """The finite number of `key`; None without one."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
        raise self._wrong(key, "a finite number", value)

    def flag(self, key: str) -> bool | None:
        """The boolean of `key`; None without one."""
        value = self.values.get(key)
        if value is None or isinstance(value, bool):
            return value
        raise self._wrong(key, "a boolean", value)

    def numbers(self, key: str) -> np.ndarray | None:
        """The array of numbers or booleans of `key`; None without one."""
        value = self.values.get(key)
        if value is None or isinstance(value, np.ndarray):
            return value
        raise self._wrong(key, "an array of numbers", value)

    def texts(self, key: str) -> Texts | None:
        """The array of texts of `key`; None without one."""
        value = self.values.get(key)
        if value is None or isinstance(value, Texts):
            return value
        raise self._wrong(key, "an array of texts", value)

    def _wrong(self, key: str, expected: str, value: Value) -> GgufError:
        array = isinstance(value, np.ndarray | Texts)
        found = f"an array of {len(value)}" if array else shown(value)  # type: ignore[arg-type]
        return GgufError(f"{self.file}: {name_of(key)} must be {expected}; not {found}")
