# SPDX-License-Identifier: Apache-2.0
"""Messages between the tensor-parallel ranks of a worker about prompts in progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rtp_llm.worker.cache.transfer.layout import BlockPart

# -- of a decode worker --------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadOrder:
    """Load what a rank has of a prompt's blocks: ``parts`` of each cache group, from the prefill
    worker whose ranks are at these ``addresses``, within ``timeout`` seconds."""

    name: int
    addresses: tuple[str, ...]
    parts: Sequence[BlockPart]
    timeout: float


@dataclass(frozen=True)
class CancelLoad:
    """Cancel a load; LoadEnded follows as for any other."""

    name: int


@dataclass(frozen=True)
class LoadEnded:
    """To rank 0: nothing writes to the blocks any more; see LoadHandle."""

    name: int
    code: str
    message: str


@dataclass(frozen=True)
class CloseLoad:
    """All ranks have ended it; ``arrived``: with all blocks, which steps from now on see."""

    name: int
    arrived: bool


# -- of a prefill worker -------------------------------------------------------------------------


@dataclass(frozen=True)
class SendOrder:
    """Offer the blocks of a prompt, as they are computed, under this name."""

    name: int
    sequence: int
    tokens: NDArray[np.int32]
    extra_key: str


@dataclass(frozen=True)
class EndSend:
    """End the sending of a prompt that nobody needs any more."""

    name: int


@dataclass(frozen=True)
class SendFailed:
    """To rank 0: not all blocks of a sequence reached the store."""

    sequence: int
    reason: str


@dataclass(frozen=True)
class SendReleased:
    """To rank 0: neither a copy nor the store reads its blocks any more, here."""

    name: int
