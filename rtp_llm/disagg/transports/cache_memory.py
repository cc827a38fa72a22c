# SPDX-License-Identifier: Apache-2.0
"""The memory of a KV cache, as the regions that transports read and write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtp_llm.disagg.transports.interface import HOST, Region

if TYPE_CHECKING:
    from rtp_llm.worker.cache.kv_cache import KVCache


def memory_of(cache: KVCache) -> list[Region]:
    """Return the regions that hold the cache, sorted and each once."""
    found = set()
    for layer in cache.layers:
        storage, place = layer.untyped_storage(), layer.device
        device = HOST if place.type == "cpu" else place.index
        found.add((storage.data_ptr(), storage.nbytes(), device))
    return sorted(found)
