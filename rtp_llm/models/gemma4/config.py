# SPDX-License-Identifier: Apache-2.0
"""What the config of Gemma 4 has besides that of other decoders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Gemma4Config:
    """Layers without a window have `full_kv_heads` KV heads, and heads of `full_head_dim` channels.

    `keys_as_values`: they have no projection of values, which are the projected keys.
    `shared_layers`: so many layers at the end read the keys and values of the last layer of their
    type before them; with `wide_shared_mlp` their feed-forward part is twice as wide.
    `per_layer_size`: the channels of a token's embedding for each layer (0: none), in a table of
    `per_layer_vocabulary` rows.
    """

    full_head_dim: int
    full_kv_heads: int
    keys_as_values: bool = False
    shared_layers: int = 0
    wide_shared_mlp: bool = False
    per_layer_size: int = 0
    per_layer_vocabulary: int = 0

    def is_shared(self, index: int, num_layers: int) -> bool:
        """Whether the layer has no keys and values of its own."""
        return index >= num_layers - self.shared_layers

    def source(self, index: int, windows: Sequence[int]) -> int:
        """The layer whose keys and values layer `index` reads; `windows` of all layers.

        Raises ValueError if no layer before the shared ones has its window.
        """
        if not self.is_shared(index, len(windows)):
            return index
        own = range(len(windows) - self.shared_layers)
        found = [each for each in own if windows[each] == windows[index]]
        if not found:
            raise ValueError(
                f"layer {index} finds an earlier layer of its type, whose keys and values it reads"
            )
        return found[-1]
