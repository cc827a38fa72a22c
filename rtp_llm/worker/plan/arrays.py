# SPDX-License-Identifier: Apache-2.0
"""The declaration of a step's arrays as tables."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import numpy as np

from rtp_llm.worker.plan.extents import Extent, Needs, OnDevice
from rtp_llm.worker.plan.step_plan import StepPlan


@dataclass(frozen=True)
class StepArray:
    """One array of a plan, or one per cache group."""

    name: str
    dtype: np.dtype[Any]
    extent: Extent
    on_device: OnDevice | None
    needs: str | None = None  # the scheduler's setting without which it is empty

    @property
    def padding(self) -> int | None:
        """What graphs fill places with that a step leaves over; None: the array's last entry."""
        return None if self.on_device is None else self.on_device.padding


def _arrays() -> tuple[StepArray, ...]:
    found = []
    for name, hint in get_type_hints(StepPlan, include_extras=True).items():
        if get_origin(hint) is not Annotated:
            continue
        array, *marks = get_args(hint)
        extent = next(mark for mark in marks if isinstance(mark, Extent))
        on_device = next((mark for mark in marks if isinstance(mark, OnDevice)), None)
        if extent.per_group:
            array = get_args(array)[0]
        needs = next((mark.setting for mark in marks if isinstance(mark, Needs)), None)
        found.append(StepArray(name, np.dtype(_number(array)), extent, on_device, needs))
    return tuple(found)


def _number(array: Any) -> Any:
    """The number type of an NDArray, which is an alias of its own from NumPy 2.5 on."""
    last = get_args(array)[-1]
    inner = get_args(last)  # of a dtype
    return inner[0] if inner else last


_ALL = _arrays()
ARRAYS = tuple(each for each in _ALL if not each.extent.per_group)
GROUP_ARRAYS = tuple(each for each in _ALL if each.extent.per_group)
DEVICE_ARRAYS = tuple(each for each in ARRAYS if each.on_device is not None)  # all int32


def device_arrays(needs: Collection[str]) -> tuple[StepArray, ...]:
    """Those that each step copies to the device for a model with these ``needs``."""
    return tuple(each for each in DEVICE_ARRAYS if each.needs is None or each.needs in needs)


_NAMES = {each.name for each in (*ARRAYS, *GROUP_ARRAYS)}

# What is a plain number of a plan, in the order in which StepChannel publishes them.
NUMBERS = tuple(each.name for each in fields(StepPlan) if each.name not in _NAMES)
