# SPDX-License-Identifier: Apache-2.0
"""The interface between the worker and what finds drafts on the device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from rtp_llm.device import Download
    from rtp_llm.worker.device_step import DeviceStep
    from rtp_llm.worker.forked_sequences import ForkedSequences
    from rtp_llm.worker.new_sequences import NewSequences
    from rtp_llm.worker.speculative.draft_sampling import DraftSampling


class DeviceDrafter(Protocol):
    """Finds the drafts that plans name by rows (`DeviceProposer`, `SampledTokens`).

    A step goes through it twice, in the order of the device's work, and the host waits for neither.
    A draft that it does not find is -1: it is never accepted, and the layers see token 0 there.
    """

    keeps_sequences: bool = False  # it wants to hear of every sequence that ends
    sampling: DraftSampling | None = None  # by which drafts are sampled, if they are

    def add(self, sequences: NewSequences) -> None:
        """Sequences that the plans from now on may name."""
        return

    def fork(self, forked: ForkedSequences) -> None:
        """Sequences that continue another one, which plans from now on may name. Drafts may be
        wrong until a step has computed them."""
        return

    def end(self, ids: Iterable[int]) -> None:
        """Sequences that no later plan names; unknown ones are ignored."""
        return

    def draft(self, step: DeviceStep) -> None:
        """Before the model's layers: write the plan's drafts into ``SampledTokens.drafts``."""

    def extend(self, step: DeviceStep, hidden: Tensor) -> None:
        """After sampling: take in the step's tokens and ``hidden`` states [T, hidden]."""

    # -- prompts that one worker computes and another one goes on with -------------------------

    def send_states(self, slots: NDArray[np.int32]) -> Download | None:
        """The state that sequences in ``slots`` [N] need in addition to their KV caches, uint8
        [N, bytes], as the running step leaves it. None: they need nothing else."""
        return None

    def takes_state(self, state: bytes) -> bool:
        """Whether ``state`` is what another worker's drafter like this one may have sent."""
        return not state

    def receive(self, sequence: int, slot: int, token: int, state: bytes) -> None:
        """Continue a sequence from the first ``token`` after its prompt, and from a ``state`` that
        `takes_state` accepts."""
        return
