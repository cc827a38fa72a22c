# SPDX-License-Identifier: Apache-2.0
"""A prefill worker's end of transfers, on one rank: what of whose prompts goes to the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtp_llm.disagg.prefill.prompt_writer import PromptWriter
    from rtp_llm.disagg.rank_messages import SendOrder
    from rtp_llm.disagg.transports.store import TransportStore
    from rtp_llm.disagg.wire.messages import Stored


class PromptSender:
    """Offers the blocks of prompts by their names, and knows when nothing reads them any more."""

    def __init__(self, writer: PromptWriter, store: TransportStore) -> None:
        self.writer, self.store = writer, store

    def announce(self, name: int, transport: str, tell: Callable[[Stored], None]) -> None:
        """Choose the transport of a prompt's blocks. Raises ValueError if it cannot be used."""
        self.store.begin(str(name), transport, tell)

    def forget(self, name: int) -> None:
        """Forget a prompt that was announced but will not begin."""
        self.store.forget(str(name))

    def begin(self, order: SendOrder) -> None:
        """Offer the blocks of this sequence from the next step on."""
        self.writer.add(order.sequence, order.name, order.tokens, order.extra_key)

    def computed(self, sequence: int) -> bytes:
        """No later step has blocks of it. Returns the draft state; see Prefilled."""
        state = self.writer.take_draft_state(sequence)
        self.writer.remove(sequence)
        return state

    def end(self, name: int, sequence: int) -> None:
        """End a prompt that nobody needs any more."""
        self.writer.remove(sequence)
        self.store.end(str(name))

    def reads(self, name: int, sequence: int) -> bool:
        """Whether a copy or the store still reads blocks of this ended prompt."""
        return self.writer.reads(sequence) or self.store.busy(str(name))

    def take_failures(self) -> Mapping[int, str]:
        """Return sequences with blocks that did not reach the store, and why; each once."""
        return {sequence: str(error) for sequence, error in self.writer.take_failures().items()}

    def take_released(self) -> None:
        """`fileno` is readable for what comes from now on."""
        self.store.take_released()

    @property
    def under_way(self) -> bool:
        """`take_failures` has to be asked again."""
        return self.writer.under_way

    @property
    def queued(self) -> int:
        """Layers that no thread of the writer has taken yet."""
        return self.writer.queued

    def deliver(self) -> None:
        """Let all ranks receive what was sent so far."""

    def fileno(self) -> int:
        """Readable when something that ended is not read any more."""
        return self.store.fileno()

    def close(self) -> None:
        """End connections and threads."""
        self.store.close()
        self.writer.close()
