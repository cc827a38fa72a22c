# SPDX-License-Identifier: Apache-2.0
"""The devices left visible by a mask such as a vendor's environment variable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class VisibleDevices:
    """`entries` in the order of a process's device indices, each as the mask spells it.

    An entry may be a number, a UUID or `device.tile`: only its position is an index. `variable`
    is the one that was read, and the one to set for a process that gets some of the devices; a
    device that cannot be masked has neither.
    """

    variable: str = ""
    entries: tuple[str, ...] = ()

    def environment(self, *positions: int) -> dict[str, str]:
        """The environment variables for a process that gets the devices at `positions`."""
        mask = ",".join(self.entries[position] for position in positions)
        return {self.variable: mask} if self.variable else {}


def visible_devices(
    variables: Sequence[str], environ: Mapping[str, str], count: int, end: str | None = None
) -> VisibleDevices:
    """Parse the first of `variables` that is set; if it is blank, all `count` devices are visible.

    Entries may be surrounded by spaces, and empty ones are ignored. `end` is the entry at which a
    driver stops reading the mask.
    """
    variable = next((name for name in variables if name in environ), variables[0])
    entries = [entry.strip() for entry in environ.get(variable, "").split(",")]
    entries = [entry for entry in entries if entry]
    if not entries:
        return VisibleDevices(variable, tuple(str(index) for index in range(count)))
    if end in entries:
        entries = entries[: entries.index(end)]
    return VisibleDevices(variable, tuple(entries))


def describe_mask(variables: Sequence[str], environ: Mapping[str, str]) -> str:
    """The variables and their values, for a message about devices that cannot be seen."""
    found = [f"{name}={environ[name]!r}" for name in variables if name in environ]
    return ", ".join(found) or f"{variables[0]} is not set"
