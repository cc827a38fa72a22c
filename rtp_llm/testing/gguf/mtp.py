# SPDX-License-Identifier: Apache-2.0
"""Writes models with a layer of multi-token prediction as GGUF files, as llama.cpp does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rtp_llm.testing.gguf.models import save_gguf

# Names in the layer, and those that DeepSeek's checkpoints have.
_NAMES = {
    "pre_fc_norm_embedding.": "enorm.",
    "pre_fc_norm_hidden.": "hnorm.",
    "fc.": "eh_proj.",
    "norm.": "shared_head.norm.",
    "layers.0.": "",
}


class _Both:
    """The weights of a model and of the layer, which follows the model's own ones."""

    def __init__(self, model: Any, layer: Any) -> None:
        self.config, self._model, self._layer = model.config, model, layer

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        yield from self._model.named_parameters()
        for name, value in self._layer.named_parameters():
            yield self._named(name), value

    def named_buffers(self) -> Iterator[tuple[str, Any]]:
        yield from self._model.named_buffers()
        for name, value in self._layer.named_buffers():
            yield self._named(name), value

    def _named(self, name: str) -> str:
        begin = next(begin for begin in _NAMES if name.startswith(begin))
        own = _NAMES[begin] + name.removeprefix(begin)
        return f"model.layers.{self.config.num_hidden_layers}.{own}"


def save_mtp_gguf(
    file: Path,
    model: Any,
    layer: Any,
    architecture: str,
    kinds: Mapping[str, str] | str = "F32",
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """save_gguf of `model` with the layer of an MtpOracle (mtp_models.py); returns the file."""
    more = {
        **(metadata or {}),
        f"{architecture}.block_count": model.config.num_hidden_layers + 1,
        f"{architecture}.nextn_predict_layers": 1,
    }
    return save_gguf(file, _Both(model, layer), architecture, kinds, more=more)[0]
