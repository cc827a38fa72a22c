# SPDX-License-Identifier: Apache-2.0
"""The backend of each cache group of a model, and the data shared within a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from rtp_llm.attention.backend import AttentionConfig, Backend, BackendConfig
from rtp_llm.attention.batch import ForwardBatch
from rtp_llm.attention.factory import make_backend


class GroupBackends:
    """The backends for the config of each group (None: its layers need no backend).

    Groups that differ only in their windows share a backend and its workspace.
    """

    def __init__(self, configs: Sequence[BackendConfig | None]) -> None:
        made: dict[BackendConfig, Backend[Any]] = {}
        self._of_group: list[Backend[Any] | None] = []
        for config in together(configs):
            if config is not None and config not in made:
                made[config] = make_backend(config)
            self._of_group.append(None if config is None else made[config])
        self._distinct = tuple(made.values())
        # Most backends prepare nothing, and decode steps of small models should not pay for it.
        self._prepares = any(type(each).prepare is not Backend.prepare for each in self._distinct)

    def __getitem__(self, group: int) -> Backend[Any] | None:
        return self._of_group[group]

    def prepare(self, batch: ForwardBatch) -> ForwardBatch:
        """Return the batch with the data that each group's layers share; once per step."""
        if not self._prepares:
            return batch
        return replace(
            batch,
            prepared=tuple(
                None if backend is None else backend.prepare(batch, group)
                for group, backend in enumerate(self._of_group)
            ),
        )

    def warm_up(self, kv_cache: Sequence[Tensor], layer_group: Sequence[int]) -> None:
        """See Backend.warm_up; ``kv_cache`` of each layer, ``layer_group`` its group."""
        for backend in self._distinct:
            groups = {g for g, each in enumerate(self._of_group) if each is backend}
            layer = next((i for i, group in enumerate(layer_group) if group in groups), None)
            if layer is not None:  # else this stage of a pipeline has none of its layers
                backend.warm_up(kv_cache[layer])

    def context_bytes(self, keys: int) -> int:
        """See Backend.context_bytes; layers run one after another."""
        return max((backend.context_bytes(keys) for backend in self._distinct), default=0)


def together(configs: Sequence[BackendConfig | None]) -> list[BackendConfig | None]:
    """Give each config the windows of all configs that differ from it only in windows."""
    return [
        replace(config, windows=tuple(sorted(_windows(config, configs))))
        if isinstance(config, AttentionConfig)
        else config
        for config in configs
    ]


def _windows(config: AttentionConfig, others: Sequence[BackendConfig | None]) -> set[int]:
    alike = (
        each
        for each in others
        if isinstance(each, AttentionConfig) and replace(each, windows=config.windows) == config
    )
    return {window for each in alike for window in each.windows}
