# SPDX-License-Identifier: Apache-2.0
"""What has to be undone to the tensors of a GGUF file, by architecture and name."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rtp_llm.gguf import GgufTensor, TensorType
from rtp_llm.loader.delta_net_changes import Decays, ValueColumns, ValueHeads, ValueRows
from rtp_llm.loader.row_changes import HalvesInTurn, OneAdded, RowChange
from rtp_llm.models.gguf.architectures import GgufArchitecture
from rtp_llm.models.gguf.keys import GgufKeys
from rtp_llm.models.gguf.names import HfName
from rtp_llm.ops.gguf.blocks import dequantize

_OF_HEADS = ("self_attn.q_proj", "self_attn.k_proj")
# Keys and values of latents, as [heads, rows, columns].
SPLIT_KV = ("self_attn.k_b_proj", "self_attn.v_b_proj")
_NORM, _PLAIN_NORM = "norm.weight", "ssm_norm.weight"


@dataclass(frozen=True)
class Dequantized(RowChange):
    """Blocks of a weight that only floats are computed with."""

    kind: TensorType

    @property
    def makes_floats(self) -> bool:
        return True

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        return stored[0], stored[1] // self.kind.block_bytes * self.kind.elements

    def apply(self, rows: Tensor) -> Tensor:
        blocks = rows.view(len(rows), -1, self.kind.block_bytes)
        return dequantize(self.kind.name, blocks).flatten(1)


class GgufChanges:
    """The changes of one model's tensors."""

    def __init__(self, row: GgufArchitecture, keys: GgufKeys) -> None:
        self._row, self._keys = row, keys
        heads = keys.needed("attention.head_count")
        width = keys.integer("attention.key_length")
        self._head_dim = width or keys.needed("embedding_length") // max(1, heads)

    def of(self, tensor: GgufTensor, name: HfName) -> RowChange | None:
        """The change of a tensor; None: there is none."""
        module = name.module
        if self._row.paired_rows and module.endswith(_OF_HEADS):
            return HalvesInTurn(self._head_dim)
        if tensor.name.endswith(_NORM) and not tensor.name.endswith(_PLAIN_NORM):
            return OneAdded() if self._row.norms_plus_one else None
        if module.endswith(SPLIT_KV) and tensor.type.elements > 1:
            return Dequantized(tensor.type)
        is_linear = self._row.delta_net and ".linear_attn." in module
        return self._of_delta_net(tensor, module.rpartition(".")[2]) if is_linear else None

    def _of_delta_net(self, tensor: GgufTensor, part: str) -> RowChange | None:
        keys = self._keys
        count, groups = keys.needed("ssm.time_step_rank"), keys.needed("ssm.group_count")
        if count < 1 or groups < 1 or count % groups:
            raise keys.error("ssm.time_step_rank", f"must be a multiple of {groups} key heads")
        groups = groups if self._row.tiled_values else count
        heads, rows = ValueHeads(groups, count // groups), tensor.shape[0]
        size = keys.needed("ssm.inner_size") // count
        if part == "A_log":
            return Decays(heads, 1, rows)
        if heads.per_key == 1:
            return None
        match part:
            case "in_proj_qkv" | "conv1d":
                return ValueRows(heads, size, rows, rows - count * size)
            case "in_proj_z":
                return ValueRows(heads, size, rows)
            case "in_proj_a" | "in_proj_b" | "dt_bias":
                return ValueRows(heads, 1, rows)
            case "out_proj":
                # Blocks that heads would cut stay where they are: see TiledHeads.
                return None if size % tensor.type.elements else ValueColumns(heads)
        return None
