# SPDX-License-Identifier: Apache-2.0
"""A row of the table of what is refused."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """One thing that is refused: `name` in `area` on `devices`, why, and what to change."""

    area: str
    name: str
    reason: str
    change: str
    devices: str = "all"

    @property
    def device_names(self) -> tuple[str, ...]:
        """`devices` one by one."""
        return tuple(self.devices.split(", "))

    @property
    def message(self) -> str:
        """What the user is told."""
        return f"{self.name} is not supported: {self.reason} {self.change}"

    def message_on(self, device: str) -> str:
        """What the user of `device` is told."""
        return f"{self.name} is not supported on {device}: {self.reason} {self.change}"
