# SPDX-License-Identifier: Apache-2.0
"""The worker side of a prefill worker: offers one rank's blocks of prompts to decode workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from rtp_llm.disagg.rank_messages import EndSend, SendFailed, SendOrder, SendReleased
from rtp_llm.worker.kv_connector import WorkerConnector
from rtp_llm.worker.layer_hooks import LayerHooks

if TYPE_CHECKING:
    from rtp_llm.disagg.prefill.prompt_writer import PromptWriter
    from rtp_llm.disagg.transports.store import TransportStore
    from rtp_llm.disagg.wire.messages import Stored
    from rtp_llm.worker.plan.step_plan import StepPlan
    from rtp_llm.worker.speculative.device_drafter import DeviceDrafter

# How often a rank in a process of its own looks after its copies.
_POLL_SECONDS = 0.02


class PromptSender(WorkerConnector):
    """Offers the blocks of prompts by their names, and reports when nothing reads them any more."""

    def __init__(self, writer: PromptWriter, store: TransportStore) -> None:
        self.writer, self.store = writer, store
        self._orders: dict[int, SendOrder] = {}  # by name
        self._ended: set[int] = set()

    def announce(self, name: int, transport: str, notify: Callable[[Stored], None]) -> None:
        """Choose the transport of a prompt's blocks before its order. Raises ValueError if it
        cannot be used. Without this they go by TCP, for which ``notify`` is never called."""
        self.store.begin(str(name), transport, notify)

    def forget(self, name: int) -> None:
        """Forget a prompt that was announced but will not be sent."""
        self.store.forget(str(name))

    def computed(self, sequence: int) -> bytes:
        """Take note that no later step has blocks of a sequence. Returns the draft state; see
        Prefilled."""
        state = self.writer.take_draft_state(sequence)
        self.writer.remove(sequence)
        return state

    @property
    def poll_seconds(self) -> float | None:
        return _POLL_SECONDS if self._ended or self.writer.in_progress else None

    def handle_message(self, message: Any) -> None:
        match message:
            case SendOrder():
                self._orders[message.name] = message
                if not self.store.has(str(message.name)):
                    self.announce(message.name, "tcp", _ignore)
                self.writer.add(message.sequence, message.name, message.tokens, message.extra_key)
            case EndSend():
                self._ended.add(message.name)
                self.writer.remove(self._orders[message.name].sequence)
                self.store.end(str(message.name))

    def get_finished(self) -> Iterator[SendFailed | SendReleased]:
        for sequence, error in self.writer.take_failures().items():
            yield SendFailed(sequence, str(error))
        self.store.take_released()
        for name in list(self._ended):
            reads = self.writer.reads(self._orders[name].sequence)
            if not reads and not self.store.busy(str(name)):
                self._ended.remove(name)
                del self._orders[name]
                yield SendReleased(name)

    def begin_step(self, plan: StepPlan) -> AbstractContextManager[LayerHooks] | None:
        return self.writer.begin(plan)

    def save_draft_states(self, plan: StepPlan, drafter: DeviceDrafter) -> None:
        self.writer.send_drafts(plan, drafter)

    @property
    def queued(self) -> int:
        """Layers that no thread of the writer has taken yet."""
        return self.writer.queued

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when something that ended is not read any
        more."""
        return self.store.fileno()

    def close(self) -> None:
        """End connections and threads."""
        self.store.close()
        self.writer.close()


def _ignore(_: Stored) -> None:
    """By TCP blocks are requested; nobody is notified of them."""
