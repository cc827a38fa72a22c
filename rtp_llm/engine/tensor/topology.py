"""Which rank computes what: the sizes of all kinds of parallelism, and the devices they take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings


@dataclass(frozen=True)
class Topology:
    """``data`` engines, whose model is divided among ``tensor`` ranks each; ``experts``: among so
    many engines a mixture's experts are divided.

    Device d * ``tensor`` + t is that of tensor-parallel rank t of engine d.
    """

    data: int = 1
    tensor: int = 1
    experts: int = 1

    @classmethod
    def of(cls, settings: Settings, *, is_mixture: bool) -> Topology:
        """As settings ask for it."""
        data = settings.data_parallel_size
        return cls(data, settings.tensor_parallel_size, data if is_mixture else 1)

    @property
    def size(self) -> int:
        """Processes, each with a device of its own where there are several."""
        return self.data * self.tensor

    def table(self, device: str) -> str:
        """One line for each engine, below the product; ``device`` is the name of their kind."""
        lines = [
            f"ranks: {self.size} = data_parallel_size {self.data} x tensor_parallel_size "
            f"{self.tensor}, pipeline_parallel_size 1, expert_parallel_size {self.experts}"
        ]
        if self.size > 1:
            for engine in range(self.data):
                first = engine * self.tensor
                places = [
                    device if device == "cpu" else f"{device}:{first + rank}"
                    for rank in range(self.tensor)
                ]
                lines.append(f"  engine {engine}: {', '.join(places)}")
        return "\n".join(lines)
