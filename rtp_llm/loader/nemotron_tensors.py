# SPDX-License-Identifier: Apache-2.0
"""Presents the embedding and the last norm of Nemotron-H under the names of other decoders."""

from __future__ import annotations

from dataclasses import replace

from rtp_llm.loader.tensor_entry import TensorEntry

_NAMES = {
    f"{prefix}.{theirs}.weight": f"{prefix}.{name}.weight"
    for prefix in ("backbone", "model")
    for theirs, name in (("embeddings", "embed_tokens"), ("norm_f", "norm"))
}


def nemotron_tensors(tensors: dict[str, TensorEntry]) -> dict[str, TensorEntry]:
    """Rename the two tensors; the others keep their names and their order."""
    entries = (
        replace(entry, name=_NAMES[name]) if name in _NAMES else entry
        for name, entry in tensors.items()
    )
    return {each.name: each for each in entries}
