# SPDX-License-Identifier: Apache-2.0
"""A config.json as it was written, read key by key with errors that name the key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtp_llm.model_folder import ModelFilesError, finite, shown, token_ids
from rtp_llm.models.config_fields import FIELDS, ROPE_FIELDS, problems
from rtp_llm.models.refusals import rope_settings


class ModelConfigError(ModelFilesError):
    """A file of the model folder is missing, broken or contradicts itself; the message names it."""


@dataclass(frozen=True)
class RawConfig:
    """The keys of one config.json, with the architecture's defaults for missing ones.

    `source` is the file that they were read from, if it is not the config.json of `folder`. All
    keys that are read are listed in FIELDS and ROPE_FIELDS, which check() validates.
    """

    folder: Path
    values: Mapping[str, Any]
    defaults: Mapping[str, Any]
    source: Path | None = None

    @property
    def file(self) -> Path:
        return self.source or self.folder / "config.json"

    def check(self) -> None:
        """Raise ModelConfigError for the first value whose type or range is wrong."""
        for key, expected in problems(self.values, FIELDS):
            raise self.error(key, self.values[key], expected)
        rope = rope_settings(self.values)
        for key, expected in problems(rope, ROPE_FIELDS):
            raise self.error(f"the rope setting {key}", rope[key], expected)

    def get(self, key: str) -> Any:
        """The value, the architecture's default when the key is missing, or None."""
        return self.values[key] if key in self.values else self.defaults.get(key)

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive integer; ModelConfigError if it is missing and there is no `default`."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise self.error(key, value, "a positive integer")
        return value

    def count(self, key: str) -> int:
        """A non-negative integer; ModelConfigError if it is missing."""
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.error(key, value, "an integer from 0")
        return value

    def number(self, key: str) -> float:
        value = self.get(key)
        number = finite(value)
        if number is None:
            raise self.error(key, value, "a number")
        return number

    def flag(self, key: str) -> bool:
        value = self.get(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.error(key, value, "true or false")
        return value

    def text(self, key: str) -> str:
        value = self.get(key)
        if not isinstance(value, str):
            raise self.error(key, value, "a text")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One id or a list of ids as a tuple; empty when the key is missing or null."""
        try:
            return token_ids(self.file, key, self.get(key))
        except ModelFilesError as error:
            raise ModelConfigError(str(error)) from error

    def error(self, key: str, value: Any, expected: str) -> ModelConfigError:
        found = "it is missing" if value is None else f"not {shown(value)}"
        return ModelConfigError(f"{self.file}: {key} must be {expected}; {found}")
