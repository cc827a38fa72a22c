"""What the text side reads from a model folder: JSON files, special tokens, template, defaults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


class ModelFilesError(ValueError):
    """A file of the model folder is missing or cannot be used; the message names it."""


@dataclass(frozen=True)
class ModelFiles:
    """The small JSON files of a Hugging Face model folder; a missing optional file is empty."""

    folder: Path
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    tokenizer_config: Mapping[str, Any]
    special_tokens_map: Mapping[str, Any]

    @classmethod
    def read(cls, path: str | Path) -> ModelFiles:
        """Read them; raises ModelFilesError when the folder is not one of a model."""
        folder = Path(path)
        check_folder(folder, weights=False)
        return cls(
            folder,
            read_json(folder / "config.json"),
            read_json(folder / "generation_config.json"),
            read_json(folder / "tokenizer_config.json"),
            read_json(folder / "special_tokens_map.json"),
        )

    @property
    def special_tokens(self) -> dict[str, str]:
        """bos_token, eos_token, ... -> the token's text, for those that the model has."""
        found: dict[str, str] = {}
        for name in SPECIAL_TOKENS:
            value = self.tokenizer_config.get(name) or self.special_tokens_map.get(name)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                found[name] = text
        return found

    def chat_template(self, override: str | None = None) -> str | None:
        """The template's source: the file `override`, or the model's own (None: it has none)."""
        if override is not None:
            return _read_text(Path(override), "--chat-template")
        file = self.folder / "chat_template.jinja"
        if file.exists():
            return _read_text(file, "chat template")
        named = self.tokenizer_config.get("chat_template")
        if named is None:
            named = read_json(self.folder / "chat_template.json").get("chat_template")
        if isinstance(named, list):
            named = {entry["name"]: entry["template"] for entry in named}
        if isinstance(named, dict):
            named = named.get("default")
        return named if isinstance(named, str) else None


def check_folder(path: str | Path, *, weights: bool = True) -> None:
    """Raise ModelFilesError, saying what was looked for, unless `path` is a model's folder.

    `weights`: they are needed, too.
    """
    folder = Path(path)
    if not folder.exists():
        raise ModelFilesError(
            f"no model folder at {folder} (looked in {Path.cwd()}); "
            "give the path of a folder with config.json, *.safetensors and tokenizer.json"
        )
    if not folder.is_dir():
        raise ModelFilesError(f"{folder} is a file; give the folder that holds config.json")
    missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).exists()]
    if weights and not any(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    if not missing:
        return
    found = sorted(entry.name for entry in folder.iterdir())[:12]
    advice = _advice(folder, missing)
    raise ModelFilesError(
        f"{folder} lacks {', '.join(missing)} (it holds: {', '.join(found) or 'nothing'}).{advice}"
    )


def _advice(folder: Path, missing: list[str]) -> str:
    if "tokenizer.json" in missing and (folder / "tokenizer.model").exists():
        return (
            " Convert tokenizer.model once with transformers: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)."
        )
    if "*.safetensors" in missing and any(folder.glob("*.bin")):
        return " Convert the .bin weights once: save_pretrained(folder) writes safetensors."
    return ""


def read_json(path: Path) -> Mapping[str, Any]:
    """A JSON object; {} when the file is missing. Raises ModelFilesError when it is broken."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelFilesError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise ModelFilesError(f"{path} must hold a JSON object, not {type(content).__name__}")
    return content


def _read_text(path: Path, what: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFilesError(f"{what}: cannot read {path}: {error}") from error
