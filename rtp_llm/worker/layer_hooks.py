# SPDX-License-Identifier: Apache-2.0
"""Functions that a KV connector lets the layers of a step call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class LayerHooks:
    """Functions that a step's layers call with their index; None: nobody waits or saves.

    ``wait_for_layer_load`` is called before a layer reads its cache, and returns when device work
    enqueued from then on sees what was loaded. ``save_kv_layer`` is called once the writes of the
    layer's keys and values are enqueued.
    """

    wait_for_layer_load: Callable[[int], None] | None = None
    save_kv_layer: Callable[[int], None] | None = None
