"""Experts that a checkpoint keeps in one tensor, as if each had its own tensors.

transformers 5 computes with `experts.gate_up_proj` [E, 2 I, K] and `experts.down_proj` [E, K, I],
and writes them so with save_original_format=False. Rows of one expert lie together: what an
expert's tensor would hold is a range of the file's bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rtp_llm.loader.safetensors_header import CheckpointError
from rtp_llm.loader.tensor_entry import TensorEntry
from rtp_llm.models.config_fields import MOST_EXPERTS

# Ends of names -> the parts below each other in the rows of an expert.
_STACKED = {
    ".experts.gate_up_proj": ("gate_proj", "up_proj"),
    ".experts.down_proj": ("down_proj",),
}


def split_experts(tensors: dict[str, TensorEntry]) -> dict[str, TensorEntry]:
    """`tensors` with those of all experts replaced by "experts.NUMBER.PART.weight"; same order."""
    found: dict[str, TensorEntry] = {}
    for entry in tensors.values():
        for part in _parts(entry):
            if part.name in found:
                raise CheckpointError(f"{entry.file}: {entry.name} holds {part.name} once more")
            found[part.name] = part
    return found


def _can_split(entry: TensorEntry, parts: int) -> bool:
    """Whether the rows of an expert are so many `parts`, and it is not more experts than exist."""
    return entry.shape[0] <= MOST_EXPERTS and entry.shape[1] % parts == 0


def _parts(entry: TensorEntry) -> Iterator[TensorEntry]:
    end = next((end for end in _STACKED if entry.name.endswith(end)), None)
    if end is None or len(entry.shape) != 3 or not _can_split(entry, len(_STACKED[end])):
        yield entry
        return
    (experts, rows, columns), names = entry.shape, _STACKED[end]
    shape = (rows // len(names), columns)
    path, offset = entry.name.rpartition(".")[0], entry.offset
    for expert in range(experts):
        for name in names:
            made = replace(entry, name=f"{path}.{expert}.{name}.weight", shape=shape, offset=offset)
            yield made
            offset += made.size
