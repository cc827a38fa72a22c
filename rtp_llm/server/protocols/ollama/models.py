# SPDX-License-Identifier: Apache-2.0
"""The served model in Ollama's format: model lists, running models, capabilities."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rtp_llm.gguf import is_gguf, language_model
from rtp_llm.server.endpoint.server_state import ServerState
from rtp_llm.server.protocols.ollama.answers import (
    OllamaDetails,
    OllamaModel,
    OllamaRunningModel,
    OllamaShowAnswer,
)
from rtp_llm.server.protocols.ollama.names import tagged
from rtp_llm.server.protocols.ollama.timestamps import NEVER, at
from rtp_llm.text.fill_in_middle import fill_in_middle
from rtp_llm.text.model_files import ModelFiles

# Bytes per parameter, and Ollama's name for the type.
_DTYPES = {
    "float32": (4, "F32"),
    "float16": (2, "F16"),
    "bfloat16": (2, "BF16"),
    "fp8": (1, "FP8"),
}
# Key of Ollama's `model_info`, after the architecture -> key of config.json.
_INFO = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
}
# Clients offer a suffix if the template mentions one; in Jinja this is a comment.
_SUFFIX = "{#- {{ .Prompt }}{{ .Suffix }} -#}"


@dataclass(frozen=True)
class _Folder:
    """Facts from the files of a model."""

    config: Mapping[str, Any]
    size: int
    digest: str
    modified: str
    format: str = "safetensors"
    weights: int = 0
    """Their number, if it is known exactly."""

    @property
    def family(self) -> str:
        return str(self.config.get("model_type") or "unknown")

    @property
    def quantization(self) -> str:
        """ "fp8", or the dtype."""
        method = _mapping(self.config.get("quantization_config")).get("quant_method")
        text = _mapping(self.config.get("text_config"))
        dtypes = (each.get(key) for each in (self.config, text) for key in ("dtype", "torch_dtype"))
        return str(method or next((each for each in dtypes if each), "bfloat16"))

    @property
    def parameters(self) -> int:
        """The approximate number of parameters; 0: unknown."""
        if self.weights:
            return self.weights
        bytes_each, _ = _DTYPES.get(self.quantization, (0, ""))
        return self.size // bytes_each if bytes_each else 0

    def value(self, key: str) -> object:
        """A number from the language model's config."""
        return _mapping(self.config.get("text_config")).get(key, self.config.get(key))

    def details(self) -> OllamaDetails:
        _, level = _DTYPES.get(self.quantization, (0, self.quantization.upper()))
        return OllamaDetails(
            format=self.format,
            family=self.family,
            families=[self.family],
            parameter_size=_rounded(self.parameters),
            quantization_level=level,
        )


@lru_cache(maxsize=1)
def _read(path: str) -> _Folder:
    """Read the model's files; raises ModelFilesError."""
    if is_gguf(path):
        return _read_gguf(path)
    folder, files = Path(path), ModelFiles.read(path)
    weights = sorted(folder.glob("*.safetensors"))
    sizes = [file.stat().st_size for file in weights]
    digest = hashlib.sha256(files.config_file.read_bytes())
    for file, size in zip(weights, sizes, strict=True):
        digest.update(f"{file.name} {size}\n".encode())
    modified = max(file.stat().st_mtime for file in [files.config_file, *weights])
    return _Folder(files.config, sum(sizes), digest.hexdigest(), at(modified))


def _read_gguf(path: str) -> _Folder:
    model = language_model(path)
    metadata = model.metadata
    config: dict[str, Any] = {"model_type": metadata.architecture, "dtype": model.recipe}
    for theirs, ours in _INFO.items():
        value = metadata.values.get(metadata.of_model(theirs))
        if isinstance(value, int | float):
            config[ours] = value
    states = [file.stat() for file in model.files]
    digest = hashlib.sha256()
    for file, state in zip(model.files, states, strict=True):
        digest.update(f"{file.name} {state.st_size}\n".encode())
    modified = max(state.st_mtime for state in states)
    size = sum(state.st_size for state in states)
    return _Folder(config, size, digest.hexdigest(), at(modified), "gguf", model.num_weights)


def listed_model(state: ServerState, name: str) -> OllamaModel:
    """The model in GET /api/tags."""
    folder, name = _read(state.settings.model), tagged(name)
    return OllamaModel(
        name=name,
        model=name,
        modified_at=folder.modified,
        size=folder.size,
        digest=folder.digest,
        details=folder.details(),
    )


def running_models(state: ServerState, names: Sequence[str]) -> list[OllamaRunningModel]:
    """The model under each of `names` in GET /api/ps; empty until the engine is ready."""
    ready = state.engine.ready
    if ready is None:
        return []
    folder = _read(state.settings.model)
    size = ready.weight_bytes + ready.kv_cache_bytes
    return [
        OllamaRunningModel(
            name=name,
            model=name,
            size=size,
            digest=folder.digest,
            details=folder.details(),
            expires_at=NEVER,
            size_vram=size if ready.free_bytes else 0,
            context_length=ready.max_model_len,
        )
        for name in map(tagged, names)
    ]


def shown_model(state: ServerState) -> OllamaShowAnswer:
    """The answer of POST /api/show; raises ApiError 503 until the engine is ready."""
    folder, tokenizer = _read(state.settings.model), state.tokenizer
    limits, syntax = state.limits, state.syntax
    template = tokenizer.chat_template or ""
    tasks = state.engine.ready.tasks if state.engine.ready else ()
    names = {"generate": "completion", "embed": "embedding"}
    capabilities = [name for task, name in names.items() if task in tasks]
    if syntax.tool_calls is not None and "tools" in tokenizer.template_variables():
        capabilities.append("tools")
    if syntax.reasoning is not None:
        capabilities.append("thinking")
    if fill_in_middle(tokenizer, limits.vocab_size) is not None:
        capabilities.append("insert")
        template += _SUFFIX
    family = folder.family
    info: dict[str, Any] = {
        "general.architecture": family,
        "general.parameter_count": folder.parameters,
        f"{family}.context_length": limits.max_model_len,
    }
    for theirs, ours in _INFO.items():
        if (value := folder.value(ours)) is not None:
            info[f"{family}.{theirs}"] = value
    return OllamaShowAnswer(
        modelfile=f"FROM {state.settings.model_name}\n",
        parameters=_parameters(state),
        template=template,
        details=folder.details(),
        model_info=info,
        capabilities=capabilities,
        modified_at=folder.modified,
    )


def _parameters(state: ServerState) -> str:
    """The sampling defaults as lines of a Modelfile."""
    defaults = state.defaults
    values = {
        "num_ctx": state.limits.max_model_len,
        "num_predict": defaults.max_tokens,
        "temperature": defaults.temperature,
        "top_k": defaults.top_k,
        "top_p": defaults.top_p,
        "min_p": defaults.min_p,
        "typical_p": defaults.typical_p,
        "repeat_penalty": defaults.repetition_penalty,
    }
    return "\n".join(f"{name:<30} {value}" for name, value in values.items() if value is not None)


def _rounded(count: int) -> str:
    if count < 1_000_000:
        return str(count) if count else ""
    return f"{count / 1e9:.1f}B" if count >= 1_000_000_000 else f"{count / 1e6:.0f}M"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
