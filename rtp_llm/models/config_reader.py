# SPDX-License-Identifier: Apache-2.0
"""Reads the typed config of a model folder, using the architecture that config.json names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rtp_llm.config.tasks import Task
from rtp_llm.gguf import is_gguf, language_model
from rtp_llm.gguf.tokens import find_tokens
from rtp_llm.model_folder import (
    PARAMS,
    ModelFilesError,
    config_file,
    is_there,
    read_bytes,
    read_json,
    read_text,
)
from rtp_llm.models.config import ModelConfig
from rtp_llm.models.drafts.eagle3 import read_eagle3_config
from rtp_llm.models.gguf.values import adapted, gguf_values
from rtp_llm.models.mistral_params import params_values
from rtp_llm.models.raw_config import ModelConfigError, RawConfig
from rtp_llm.models.refusals import UnsupportedModelError, architecture_of, check_supported, refuse
from rtp_llm.models.registry import known_architectures, model_class, model_tasks
from rtp_llm.models.text_config import text_values


def read_model_config(
    path: str | Path, *, mtp: bool = False, eagle3: str | Path = "", draft_model: str | Path = ""
) -> ModelConfig:
    """Read the config of the model in a Hugging Face folder or a GGUF file.

    Drafts come from its multi-token prediction layer (`mtp`), from the head in the folder `eagle3`,
    or from the model in the folder `draft_model`.
    Raises UnsupportedModelError, with reason and remedy, for refused models, and ModelConfigError
    for a missing or broken config.json.
    """
    config = _read(Path(path))
    if config.mrope is not None and (draft_model or eagle3 or mtp):
        raise refuse("drafts at positions of three axes", architecture=config.architecture)
    if draft_model:
        return replace(config, draft_model=_read_draft_model(Path(draft_model), config))
    if eagle3:
        if config.embedding_scale != 1:
            raise refuse("EAGLE-3 head of scaled embeddings", architecture=config.architecture)
        return replace(config, eagle3=read_eagle3_config(Path(eagle3), config))
    if not mtp:
        return config
    if config.mtp_layers != 1:
        named, found = config.architecture, f"it has {config.mtp_layers}"
        raise refuse("no layer of multi-token prediction", found, named)
    return replace(config, draft_layers=1)


def _tasks(folder: Path, architecture: str, config: ModelConfig) -> tuple[Task, ...]:
    """The tasks of its architecture. A folder of sentence-transformers is made to embed, or with a
    LogitScore module to score, as is a GGUF file that says how to pool; a classifier with one label
    gives a score."""
    tasks = model_tasks(architecture)
    classifier = config.classifier
    if classifier is not None and len(classifier.labels) == 1 and not classifier.per_token:
        return ("score", *tasks) if "classify" in tasks else tasks
    if "score" in tasks and classifier is None and not _has_answers(folder):
        tasks = tuple(task for task in tasks if task != "score")
    first = _first_task(folder)
    return (first, *(task for task in tasks if task != first)) if first in tasks else tasks


def _first_task(folder: Path) -> Task:
    """What the folder or GGUF file says that its model is made for."""
    if is_gguf(folder):
        pooling = language_model(folder).metadata.pooling
        return "generate" if pooling is None else "score" if pooling == "rank" else "embed"
    if not is_there(folder / "modules.json"):
        return "generate"
    return "score" if "LogitScore" in read_text(folder / "modules.json") else "embed"


def _has_answers(folder: Path) -> bool:
    """Whether the tokenizer knows the answers "yes" and "no", of whose logits scores are made."""
    if is_gguf(folder):
        return len(find_tokens(language_model(folder).metadata, ("yes", "no"))) == 2
    files = (folder / name for name in ("tokenizer.json", "vocab.json"))
    content = next((read_bytes(file) for file in files if is_there(file)), b"")
    return b'"yes":' in content and b'"no":' in content


def _read_draft_model(folder: Path, target: ModelConfig) -> ModelConfig:
    try:
        config = _read(folder)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"--speculative-model {folder}: {error}") from error
    if any(config.linear_layers):
        raise refuse("draft model with recurrent layers", f"{folder} has {config.architecture}")
    if config.mrope is not None:
        raise refuse("drafts at positions of three axes", f"{folder} has {config.architecture}")
    if config.vocab_size != target.vocab_size:
        found = (
            f"vocab_size is {config.vocab_size} in {folder}, and {target.vocab_size} the model's"
        )
        raise refuse("draft model of another vocabulary", found)
    return config


def _config_values(file: Path) -> Mapping[str, Any]:
    """The keys of config.json, with what ModelOpt wrote into a file of its own, or what params.json
    says."""
    if file.name == PARAMS:
        return params_values(file)
    values, own_file = read_json(file, required=True), file.parent / "hf_quant_config.json"
    if not values.get("quantization_config") and is_there(own_file):
        values["quantization_config"] = {"quant_method": "modelopt", **read_json(own_file)}
    return text_values(file, values)


def _read(folder: Path) -> ModelConfig:
    file = folder if is_gguf(folder) else config_file(folder)
    if not is_there(file):
        if is_there(folder / "adapter_config.json"):
            raise refuse("adapter folder", f"{folder} holds adapter_config.json and no config.json")
        raise ModelConfigError(f"{file} is missing: give a Hugging Face model folder")
    try:
        gguf = language_model(file) if file == folder else None
        values = text_values(file, gguf_values(gguf)) if gguf else _config_values(file)
        check_supported(values, known_architectures())
        named = architecture_of(values)
        model = model_class(named)
        raw = RawConfig(folder, values, model.CONFIG_DEFAULTS, file)
        raw.check()
        config = model.read_config(raw)
        config = adapted(config, gguf) if gguf else config
        if config.stored is not None:
            config = replace(config, stored=replace(config.stored, prefixes=model.TEXT_PREFIXES))
        return replace(config, tasks=_tasks(folder, named, config))
    except (ModelConfigError, UnsupportedModelError):
        raise
    except ModelFilesError as error:
        raise ModelConfigError(str(error)) from error
    except ValueError as error:  # keys that contradict each other, found by what they describe
        raise ModelConfigError(f"{file}: {error}") from error
