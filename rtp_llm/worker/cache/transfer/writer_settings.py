# SPDX-License-Identifier: Apache-2.0
"""The settings of the asynchronous writer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from rtp_llm.config.settings import options

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings


@dataclass(frozen=True)
class WriterSettings:
    """Threads and queue of the asynchronous writer; ``when_full``: what a full queue does."""

    threads: int = 4
    queue_size: int = 10_000
    when_full: Literal["block", "raise"] = "block"

    def __post_init__(self) -> None:
        for name in ("threads", "queue_size"):
            options()[f"cache_store_{name}"].check(name, getattr(self, name))

    @classmethod
    def read(cls, settings: Settings) -> WriterSettings:
        """Those of the command line."""
        when_full = cast(Literal["block", "raise"], settings.cache_store_when_full)
        return cls(settings.cache_store_threads, settings.cache_store_queue_size, when_full)
