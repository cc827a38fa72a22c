# SPDX-License-Identifier: Apache-2.0
"""A prompt that a decode worker has handed to a prefill worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rtp_llm.engine.messages import INDEX_BITS, AddRequest

if TYPE_CHECKING:
    from rtp_llm.disagg.decode.group_loads import GroupLoad
    from rtp_llm.disagg.decode.peers import Peer
    from rtp_llm.disagg.wire.messages import Prefilled


@dataclass
class PendingPrompt:
    """A prompt that a prefill worker computes: at first only its request, later everything else.

    Times are in monotonic seconds.
    """

    request: AddRequest
    seed: int
    keys: NDArray[np.int64]
    alive: bool = True  # the request has not been aborted
    slot: int = 0
    cached: int = 0  # tokens that are cached here
    requested_at: float = 0.0  # of the first worker
    tried: list[Peer] = field(default_factory=list)  # workers that have failed
    peer: Peer | None = None
    name: int = 0
    started_at: float = 0.0  # with this worker
    load: GroupLoad | None = None
    first: Prefilled | None = None
    first_at: float = 0.0
    problem: tuple[str, str] | None = None  # (code, reason)
    peer_knows: bool = False  # the peer need not be notified of the end

    @property
    def sequence(self) -> int:
        return self.request.request_id << INDEX_BITS
