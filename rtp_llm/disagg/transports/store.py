# SPDX-License-Identifier: Apache-2.0
"""The prefill side's transports as one store: each request's blocks go by what was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rtp_llm.disagg.transports.export_table import ExportTable
from rtp_llm.disagg.wire.messages import Stored

if TYPE_CHECKING:
    from rtp_llm.disagg.transports.endpoints import Store


class TransportStore:
    """``Store`` over the native one, which sends blocks itself, and tables that peers pull from."""

    def __init__(
        self, sent: Store, export_tables: Mapping[str, ExportTable], close: Callable[[], None]
    ) -> None:
        """``close`` ends whatever sends and shares."""
        self._sent, self._export_tables, self._close = sent, export_tables, close
        self._of: dict[str, Store | ExportTable] = {}

    def begin(self, request: str, transport: str, notify: Callable[[Stored], None]) -> None:
        """From now on its blocks are taken. Raises ValueError with the reason if they are not."""
        if transport == "tcp":
            self._of[request] = self._sent
            return
        export_table = self._export_tables.get(transport)
        if export_table is None:
            raise ValueError(f"transport {transport!r} was not offered")
        export_table.begin(request, notify)
        self._of[request] = export_table

    def has(self, request: str) -> bool:
        """Whether the request was begun and has not ended."""
        return request in self._of

    def forget(self, request: str) -> None:
        """It was not begun after all; a load that waits for it is not notified."""
        store = self._of.pop(request, None)
        if isinstance(store, ExportTable):
            store.end(request)

    def store(
        self, request: str, layer: int, blocks: NDArray[np.int64], owner: object | None = None
    ) -> bool:
        """See Store; False for what was not begun as well."""
        store = self._of.get(request)
        return store is not None and store.store(request, layer, blocks, owner)

    def end(self, request: str) -> None:
        """See Store. What is exported is free at once: readers notice."""
        if (store := self._of.pop(request, None)) is not None:
            store.end(request)

    def busy(self, request: str) -> bool:
        """See Store."""
        return self._sent.busy(request)

    def fileno(self) -> int:
        """See Store."""
        return self._sent.fileno()

    def take_released(self) -> list[str]:
        """See Store."""
        return self._sent.take_released()

    def close(self) -> None:
        """End connections and threads."""
        self._close()
