# SPDX-License-Identifier: Apache-2.0
"""Which rank computes what: the sizes of all kinds of parallelism, and the devices they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings


@dataclass(frozen=True)
class Topology:
    """``data`` engines, whose model is divided into ``pipeline`` stages of ``tensor`` ranks each.
    The experts of a mixture are divided among ``experts`` ranks of all engines.

    Rank s * ``tensor`` + t of an engine is part t of stage s. Each rank has a device; the devices
    of an engine follow those of the previous engine. All ``nodes`` have equally many, in order.
    """

    data: int = 1
    pipeline: int = 1
    tensor: int = 1
    experts: int = 1
    nodes: int = 1

    @classmethod
    def of(cls, settings: Settings, *, is_mixture: bool) -> Topology:
        """As settings ask for it."""
        data, tensor = settings.data_parallel_size, settings.tensor_parallel_size
        return cls(
            data=data,
            pipeline=settings.pipeline_parallel_size,
            tensor=tensor,
            experts=data * tensor if is_mixture else 1,
            nodes=settings.nnodes,
        )

    @property
    def size(self) -> int:
        """Processes, each with a device of its own where there are several."""
        return self.data * self.pipeline * self.tensor

    def rank_name(self, rank: int) -> str:
        """What messages call a rank of an engine."""
        stage, part = divmod(rank, self.tensor)
        if self.pipeline == 1:
            return f"rank {rank}"
        of_stage = f", part {part}" if self.tensor > 1 else ""
        return f"rank {rank} (stage {stage}{of_stage})"

    def table(self, device: str, stages: Sequence[str] = ("",)) -> str:
        """One line for each stage of each engine, below the product.

        ``device`` is the name of their kind, ``stages`` say what each of them has.
        """
        lines = [
            f"ranks: {self.size} = data_parallel_size {self.data} x pipeline_parallel_size "
            f"{self.pipeline} x tensor_parallel_size {self.tensor}, expert_parallel_size "
            f"{self.experts}"
        ]
        if self.size > 1:
            lines += [
                f"  engine {engine}{self._stage(stage)}: {self._devices(device, engine, stage)}"
                + (f": {what}" if what else "")
                for engine in range(self.data)
                for stage, what in enumerate(stages)
            ]
        return "\n".join(lines)

    def part_on_one_node(self, rank: int) -> bool:
        """All ranks of this one's stage are on its node."""
        first = rank - rank % self.tensor
        return self._node(first)[0] == self._node(first + self.tensor - 1)[0]

    def _node(self, rank: int) -> tuple[int, int]:
        """The node of a rank, and which of its ranks it is."""
        return divmod(rank, self.size // self.nodes)

    def _stage(self, stage: int) -> str:
        return f", stage {stage}" if self.pipeline > 1 else ""

    def _devices(self, device: str, engine: int, stage: int) -> str:
        first = (engine * self.pipeline + stage) * self.tensor
        return ", ".join(self._place(device, rank) for rank in range(first, first + self.tensor))

    def _place(self, device: str, rank: int) -> str:
        node, local = self._node(rank)
        place = device if device == "cpu" else f"{device}:{local}"
        return place if self.nodes == 1 else f"node {node} {place}"
