# SPDX-License-Identifier: Apache-2.0
"""A prompt that a decode worker has handed to a prefill worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rtp_llm.engine.messages import INDEX_BITS, AddRequest

if TYPE_CHECKING:
    from rtp_llm.disagg.decode.peers import Peer
    from rtp_llm.disagg.decode.receiver import PromptLoad
    from rtp_llm.disagg.wire.messages import Prefilled


@dataclass
class AwaitedPrompt:
    """A prompt that a prefill worker computes: at first only its request, later everything else."""

    request: AddRequest
    seed: int
    keys: NDArray[np.int64]
    alive: bool = True  # the request has not been aborted
    slot: int = 0
    cached: int = 0  # tokens that are cached here
    asked: float = 0.0  # when the first worker was asked, in monotonic seconds
    tried: list[Peer] = field(default_factory=list)  # workers that were asked and failed
    peer: Peer | None = None
    name: int = 0
    began: float = 0.0
    load: PromptLoad | None = None
    first: Prefilled | None = None
    first_at: float = 0.0
    problem: tuple[str, str] | None = None  # (code, reason)
    told: bool = False  # the peer does not need to be notified any more

    @property
    def sequence(self) -> int:
        return self.request.request_id << INDEX_BITS
