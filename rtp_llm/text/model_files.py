# SPDX-License-Identifier: Apache-2.0
"""The files of a model folder for text: JSON files, special tokens, template, defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtp_llm.gguf import Metadata, is_gguf, language_model
from rtp_llm.model_folder import (
    PARAMS,
    ModelFilesError,
    config_file,
    is_mistral,
    is_there,
    read_json,
    read_text,
    shown,
    token_ids,
)
from rtp_llm.text.gguf.model_files import stop_ids, tokenizer_values
from rtp_llm.text.tekken import SPECIAL as TEKKEN_SPECIAL
from rtp_llm.text.tekken import TEKKEN

__all__ = ["SPECIAL_TOKENS", "ModelFiles", "ModelFilesError", "check_folder"]

SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


_TOKENIZER = "tokenizer_config.json"
_TEMPLATE = "chat_template.json"
_GIVE_THE_FILE = " Give the path of the GGUF file itself."
# As the Hub has them: an owner and a name.
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


@dataclass(frozen=True)
class ModelFiles:
    """The small JSON files of a Hugging Face model folder; a missing optional file is empty.

    Of a GGUF file `gguf` is the metadata, and the files are what they would be of the same model.
    """

    folder: Path
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    tokenizer_config: Mapping[str, Any]
    special_tokens_map: Mapping[str, Any]
    gguf: Metadata | None = None

    @classmethod
    def read(cls, path: str | Path) -> ModelFiles:
        """Read them; raises ModelFilesError when the folder is not one of a model."""
        folder = Path(path)
        check_folder(folder, weights=False)
        if is_gguf(folder):
            metadata = language_model(folder).metadata
            config = {"eos_token_id": stop_ids(metadata)}
            return cls(folder, config, {}, tokenizer_values(metadata), {}, metadata)
        own = is_mistral(folder)
        return cls(
            folder,
            {} if own else read_json(folder / "config.json", required=True),
            read_json(folder / "generation_config.json"),
            _tokenizer_config(folder),
            read_json(folder / "special_tokens_map.json"),
        )

    @property
    def config_file(self) -> Path:
        """config.json, or what the folder has in its place."""
        return config_file(self.folder)

    @property
    def special_tokens(self) -> dict[str, str]:
        """bos_token, eos_token, ... -> the token's text, for those that the model has."""
        found: dict[str, str] = {}
        for name in SPECIAL_TOKENS:
            for file, values in (
                (_TOKENIZER, self.tokenizer_config),
                ("special_tokens_map.json", self.special_tokens_map),
            ):
                if value := values.get(name):
                    found[name] = self._token_text(file, name, value)
                    break
        return found

    def token_ids(self, file: str, key: str) -> tuple[int, ...]:
        """One id or a list of them in config.json or generation_config.json; () without the key."""
        values = self.config if file == "config.json" else self.generation_config
        return token_ids(self.folder / file, key, values.get(key))

    def chat_template(self, override: str | None = None) -> str | None:
        """The template's source: the file `override`, or the model's own (None: it has none)."""
        if override is not None:
            return _read_template(Path(override), "--chat-template")
        file = self.folder / "chat_template.jinja"
        if is_there(file):
            return _read_template(file, "chat template")
        if self.gguf is not None or self.tokenizer_config.get("chat_template") is not None:
            place = self.folder if self.gguf is not None else self.folder / _TOKENIZER
            return _choose_template(place, self.tokenizer_config)
        return _choose_template(self.folder / _TEMPLATE, read_json(self.folder / _TEMPLATE))

    def chat_template_source(self, override: str | None = None) -> str | None:
        """Where `chat_template` finds it: `override`, or the name of a file of the folder."""
        if self.chat_template(override) is None:
            return None
        if override is not None:
            return override
        if self.gguf is not None:
            return self.folder.name
        if is_there(self.folder / "chat_template.jinja"):
            return "chat_template.jinja"
        return _TOKENIZER if self.tokenizer_config.get("chat_template") is not None else _TEMPLATE

    def _token_text(self, file: str, name: str, value: object) -> str:
        text = value.get("content") if isinstance(value, dict) else value
        if not isinstance(text, str):
            raise ModelFilesError(
                f"{self.folder / file}: {name} must be a text or an object with the text content; "
                f"not {shown(value)}"
            )
        return text


def _tokenizer_config(folder: Path) -> Mapping[str, Any]:
    """tokenizer_config.json, with the names of special tokens if tekken.json is the tokenizer."""
    given = read_json(folder / _TOKENIZER)
    is_tekken = is_there(folder / TEKKEN) and not is_there(folder / "tokenizer.json")
    return {**TEKKEN_SPECIAL, **given} if is_tekken else given


def _choose_template(file: Path, values: Mapping[str, Any]) -> str | None:
    """The one template, or the one named "default" of several."""
    named = values.get("chat_template")
    if named is None or isinstance(named, str):
        return named
    pairs: list[tuple[object, object]] = [(0, 0)]
    if isinstance(named, list) and all(isinstance(entry, dict) for entry in named):
        pairs = [(entry.get("name"), entry.get("template")) for entry in named]
    elif isinstance(named, dict):
        pairs = list(named.items())
    if not all(isinstance(text, str) for pair in pairs for text in pair):
        raise ModelFilesError(
            f"{file}: chat_template must be a text or a list of objects with the texts name and "
            f"template; not {shown(values['chat_template'])}"
        )
    return next((str(text) for name, text in pairs if name == "default"), None)


def check_folder(path: str | Path, *, weights: bool = True) -> None:
    """Raise ModelFilesError, saying what was looked for, unless `path` is a model's folder or GGUF
    file.

    `weights`: they are needed, too.
    """
    folder = Path(path)
    if is_gguf(folder) and is_there(folder):
        language_model(folder)
        return
    if not is_there(folder):
        if _HUB_NAME.fullmatch(str(path)):
            raise ModelFilesError(_not_downloaded(str(path)))
        raise ModelFilesError(
            f"no model folder at {folder} (looked in {Path.cwd()}); "
            "give the path of a folder with config.json, *.safetensors and tokenizer.json, or of a "
            "GGUF file"
        )
    try:
        if not folder.is_dir():
            raise ModelFilesError(
                f"{folder} is a file; give the folder that holds config.json, or a GGUF file"
            )
        found = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise ModelFilesError(f"cannot read {folder}: {error.strerror or error}") from error
    missing = [name for name in ("config.json", "tokenizer.json") if name not in found]
    if PARAMS in found and "config.json" in missing:
        missing.remove("config.json")
    if "tokenizer.json" in missing and any(names <= {*found} for names in _READ_TOO):
        missing.remove("tokenizer.json")
    if weights and not any(name.endswith(".safetensors") for name in found):
        missing.append("*.safetensors")
    if missing:
        held = ", ".join(found[:12]) or "nothing"
        advice = _advice(found, missing)
        raise ModelFilesError(f"{folder} lacks {', '.join(missing)} (it holds: {held}).{advice}")


def _not_downloaded(name: str) -> str:
    folder = name.rpartition("/")[2]
    if "gguf" in folder.lower():
        return (
            f"no model at {name} (looked in {Path.cwd()}). That is a name on the Hugging Face Hub, "
            "and nothing is downloaded here. Run first (pip install huggingface_hub):\n"
            f'  hf download {name} --include "*Q4_K_M*.gguf" --local-dir {folder}\n'
            "then give the path of the file"
        )
    return (
        f"no model folder at {name} (looked in {Path.cwd()}). That is a name on the Hugging Face "
        "Hub, and nothing is downloaded here. Run first (pip install huggingface_hub):\n"
        f"  hf download {name} --local-dir {folder}\n"
        f"then give the folder: {folder}"
    )


# Files that a tokenizer is made of, without tokenizer.json.
_READ_TOO = (
    {"vocab.txt"},
    {"sentencepiece.bpe.model"},
    {TEKKEN},
    {"tokenizer.model"},
    {"tiktoken.model"},
    {"vocab.json", "merges.txt"},
)


def _advice(found: list[str], missing: list[str]) -> str:
    if "*.safetensors" in missing and any(name.endswith(".bin") for name in found):
        return " Convert the .bin weights once: save_pretrained(folder) writes safetensors."
    if "*.safetensors" in missing and any(name.lower().endswith(".gguf") for name in found):
        return _GIVE_THE_FILE
    return ""


def _read_template(path: Path, what: str) -> str:
    try:
        return read_text(path)
    except ModelFilesError as error:
        raise ModelFilesError(f"{what}: {error}") from error
