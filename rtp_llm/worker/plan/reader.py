# SPDX-License-Identifier: Apache-2.0
"""Plans, read from memory that another process fills."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rtp_llm.worker.plan.arrays import ARRAYS, GROUP_ARRAYS, StepArray
from rtp_llm.worker.plan.extents import Extent
from rtp_llm.worker.plan.layout import PlanLayout, PlanSizes
from rtp_llm.worker.plan.step_plan import StepPlan

_NO_TABLE = np.empty((0, 0), np.int32)


class PlanReader:
    """Copies plans out of the memory that the scheduler fills, which is then free for the next."""

    def __init__(self, layout: PlanLayout, descriptor: int) -> None:
        memory = mmap.mmap(descriptor, layout.size, access=mmap.ACCESS_WRITE)

        def array(each: StepArray, offset: int) -> NDArray[Any]:
            if offset < 0:  # of another kind of cache group, or not needed
                return np.empty(0, each.dtype)
            count = (layout.size - offset) // each.dtype.itemsize
            return np.frombuffer(memory, each.dtype, count, offset)

        self._arrays = [
            (each.name, each.extent, array(each, layout.offsets[each.name])) for each in ARRAYS
        ]
        self._groups = [
            (each.name, each.extent, [array(each, at) for at in layout.group_offsets[each.name]])
            for each in GROUP_ARRAYS
        ]
        self.count = layout.count

    def read(self, published: Sequence[int]) -> StepPlan:
        """The plan of these numbers (``count`` of them, as StepChannel.publish sends them)."""
        sizes = PlanSizes.of(published)
        arrays: dict[str, Any] = dict(sizes.numbers)
        for name, extent, array in self._arrays:
            if extent is Extent.HISTORY:  # history_cu is declared before it
                arrays[name] = array[: int(arrays["history_cu"][-1])].copy()
            else:
                arrays[name] = _copied(array, extent, sizes.shape(extent))
        for name, extent, groups in self._groups:
            arrays[name] = tuple(
                _copied(array, extent, sizes.group_shape(extent, group))
                for group, array in enumerate(groups)
            )
        return StepPlan(**arrays)


def _copied(array: NDArray[Any], extent: Extent, shape: tuple[int, ...]) -> NDArray[Any]:
    if not len(array):
        return _NO_TABLE if extent is Extent.GROUP_TABLE else array.reshape(0, *shape[1:])
    return array[: math.prod(shape)].reshape(shape).copy()
