# SPDX-License-Identifier: Apache-2.0
"""What the process of rank 0 has of the other nodes of its model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rtp_llm.distributed.world import host_store
from rtp_llm.engine.ranks.interfaces import interface_variables
from rtp_llm.engine.ranks.meeting import Meeting
from rtp_llm.worker.ranks.frames import Begin
from rtp_llm.worker.ranks.other_nodes import OtherNodes

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings
    from rtp_llm.worker.ranks.rank_failure import RankFailure


class FirstNode:
    """Node 0: ranks of all nodes meet at its ``rendezvous``, over the network that ``variables``
    name to collectives."""

    def __init__(self, settings: Settings) -> None:
        """Raises EngineStartError when nobody could come to the address of the settings."""
        self._meeting = Meeting(settings)
        self.variables = interface_variables(os.environ, self._meeting.address)
        self._store, self.rendezvous = host_store(self._meeting.address)
        self.others: OtherNodes | None = None

    def gather(self, rank_failure: RankFailure) -> None:
        """Wait for the other nodes, and let them start their ranks; ``rank_failure`` is notified
        of their end.

        Raises EngineStartError when not all came, WorkerLostError when one is lost already.
        """
        try:
            self.others = OtherNodes(self._meeting.await_nodes(rank_failure.check), rank_failure)
        finally:
            self._meeting.close()
        self.others.send(Begin(rendezvous=self.rendezvous))

    def close(self) -> None:
        """The engine ends: so do the ranks of the others."""
        self._meeting.close()
        if self.others is not None:
            self.others.close()
