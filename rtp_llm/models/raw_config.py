"""A config.json as it was written, read key by key with errors that name the key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class ModelConfigError(ValueError):
    """A file of the model folder is missing, broken or contradicts itself; the message names it."""


@dataclass(frozen=True)
class RawConfig:
    """The keys of one config.json, plus what the architecture means by a missing one."""

    folder: Path
    values: Mapping[str, Any]
    defaults: Mapping[str, Any]

    def get(self, key: str) -> Any:
        """The value, the architecture's default when the key is missing, or None."""
        return self.values[key] if key in self.values else self.defaults.get(key)

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive integer; ModelConfigError when there is none and no `default`."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise self.error(key, value, "a positive integer")
        return value

    def number(self, key: str) -> float:
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, value, "a number")
        return float(value)

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
        value = self.get(key)
        listed = value if isinstance(value, list) else [] if value is None else [value]
        if any(isinstance(item, bool) or not isinstance(item, int) for item in listed):
            raise self.error(key, value, "a token id or a list of them")
        return tuple(listed)

    def error(self, key: str, value: Any, wanted: str) -> ModelConfigError:
        found = "it is missing" if value is None else f"not {value!r}"
        return ModelConfigError(f"{self.folder / 'config.json'}: {key} must be {wanted}; {found}")


def read_json_object(path: Path, required: bool = True) -> dict[str, Any]:
    """The object in a JSON file ({}: an optional file is missing); ModelConfigError names it."""
    if not required and not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelConfigError(f"{path} is missing: give a Hugging Face model folder") from None
    except (OSError, ValueError) as error:
        raise ModelConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise ModelConfigError(f"{path} must hold a JSON object, not {type(content).__name__}")
    return content
