# SPDX-License-Identifier: Apache-2.0
"""Replays of what orders the block tables of beams."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rtp_llm.device import StagedNumbers
from rtp_llm.worker.graphs.step_graphs import no_garbage

if TYPE_CHECKING:
    from rtp_llm.device import Device
    from rtp_llm.device.streams import Graph
    from rtp_llm.worker.inputs.beam_order import BeamOrder, BeamOrderer

_logger = logging.getLogger("rtp_llm.engine")
# Steps with as many beams before they get a graph, which takes as long as some of them.
_OFTEN = 8


class BeamOrderGraphs:
    """Orders the memory that steps read as graphs, with one launch instead of many small ones."""

    def __init__(self, orderer: BeamOrderer, most: int, device: Device) -> None:
        """``most``: beams in a step."""
        self._orderer, self._device, self._most = orderer, device, most
        self._graphs: dict[int, Graph | None] = {}
        self._uses: dict[int, int] = {}
        self._pool: object = None

    @cached_property
    def _staged(self) -> StagedNumbers:
        return StagedNumbers(self._device, 4 * self._most)

    def apply(self, order: BeamOrder) -> None:
        """Order the step that was written last; never waits for the device."""
        count = order.numbers.shape[1]
        self._staged.begin()[: 4 * count].reshape(4, count)[:] = order.numbers
        self._staged.send(4 * count)
        uses = self._uses[count] = self._uses.get(count, 0) + 1
        if uses == _OFTEN:
            self._graphs[count] = self._capture(count, order.parents)
        graph = self._graphs.get(count)
        if graph is None:
            self._orderer.order(self._numbers(count), order.parents)
        else:
            graph.replay()

    def _numbers(self, count: int) -> Tensor:
        return self._staged.on_device[: 4 * count].view(4, count)

    def _capture(self, count: int, parents: Tensor) -> Graph | None:
        graph = self._device.new_graph(self._pool)
        self._device.synchronize()
        try:
            with no_garbage(), graph.capture(self._device.new_stream()):
                self._orderer.order(self._numbers(count), parents)
        except torch.OutOfMemoryError as error:
            _logger.warning("no graph orders %d beams, memory is short: %s", count, error)
            return None
        self._pool = graph.pool
        return graph
