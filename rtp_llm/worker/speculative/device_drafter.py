"""The interface between the worker and what finds drafts on the device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from rtp_llm.worker.device_step import DeviceStep
    from rtp_llm.worker.new_sequences import NewSequences


class DeviceDrafter(Protocol):
    """Finds the drafts that plans name by rows (`DeviceProposer`, `SampledTokens`).

    A step goes through it twice, in the order of the device's work, and the host waits for neither.
    A draft that it does not find is -1: it is never accepted, and the layers see token 0 there.
    """

    keeps_sequences: bool = False  # it wants to hear of every sequence that ends

    def add(self, sequences: NewSequences) -> None:
        """Sequences that the plans from now on may name."""
        return

    def end(self, ids: Iterable[int]) -> None:
        """Sequences that no later plan names; unknown ones are ignored."""
        return

    def draft(self, step: DeviceStep) -> None:
        """Before the model's layers: write the plan's drafts into ``SampledTokens.drafts``."""

    def extend(self, step: DeviceStep, hidden: Tensor) -> None:
        """Behind the sampling: take in the step's tokens and ``hidden`` states [T, hidden]."""
