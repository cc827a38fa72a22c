# SPDX-License-Identifier: Apache-2.0
"""The Dense layers of sentence-transformers, which follow pooling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from rtp_llm.device import Device
from rtp_llm.gguf import language_model
from rtp_llm.layers import Layer, WeightTarget, weight_targets
from rtp_llm.layers.weights.targets import RowsTarget
from rtp_llm.loader.checkpoint import Checkpoint
from rtp_llm.loader.gguf_tensors import read_gguf_floats
from rtp_llm.loader.progress import SilentProgress
from rtp_llm.loader.stream import load_weights
from rtp_llm.loader.weight_checks import WeightError


class DenseSizes(Protocol):
    """A layer's sizes, and the folder that has its weights, or the GGUF file with its `weight`."""

    @property
    def folder(self) -> Path: ...
    @property
    def inputs(self) -> int: ...
    @property
    def outputs(self) -> int: ...
    @property
    def bias(self) -> bool: ...
    @property
    def activation(self) -> str: ...
    @property
    def weight(self) -> str: ...


class DenseLayer(Layer):
    """activation(x @ weight.T + bias) in float32; the activation is "identity" or "tanh"."""

    bias: nn.Parameter | None

    def __init__(self, sizes: DenseSizes, device: torch.device) -> None:
        super().__init__()
        self.weight = _parameter(device, sizes.outputs, sizes.inputs)
        self.bias = _parameter(device, sizes.outputs) if sizes.bias else None
        self._is_tanh = sizes.activation == "tanh"

    def forward(self, x: Tensor) -> Tensor:
        product = linear(x, self.weight, self.bias)
        return product.tanh_() if self._is_tanh else product

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        yield "linear.weight", RowsTarget(self.weight)
        if self.bias is not None:
            yield "linear.bias", RowsTarget(self.bias)


def load_dense_layers(
    configs: Sequence[DenseSizes], hidden_size: int, device: Device
) -> list[DenseLayer]:
    """Load the layers that turn pooled vectors of ``hidden_size`` into embeddings.

    Raises WeightError naming the folder if sizes do not follow each other or are not those of the
    weights, and CheckpointError for broken files.
    """
    layers, size = [], hidden_size
    for config in configs:
        if config.inputs != size:
            found = f"in_features is {config.inputs}, and vectors have {size} numbers"
            raise WeightError(f"{config.folder}: {found}")
        layers.append(_load(config, device))
        size = config.outputs
    return layers


def _load(config: DenseSizes, device: Device) -> DenseLayer:
    layer = DenseLayer(config, device.torch_device)
    if config.weight:
        tensor = language_model(config.folder).tensors[config.weight]
        layer.weight.copy_(read_gguf_floats(tensor))
        return layer
    checkpoint = Checkpoint.open(config.folder)
    wanted = {name: target.shape for name, target in weight_targets(layer)}
    found = {name: tuple(entry.shape) for name, entry in checkpoint.tensors.items()}
    if wanted != found:
        raise WeightError(f"{config.folder} holds weights {found}; expected {wanted}")
    load_weights(layer, checkpoint, SilentProgress(), device)
    return layer


def _parameter(device: torch.device, *shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, device=device), requires_grad=False)
