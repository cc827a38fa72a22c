# SPDX-License-Identifier: Apache-2.0
"""A row of the table of refusals."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """One refusal: `name` in `area` on `devices`, the reason, and what to change."""

    area: str
    name: str
    reason: str
    change: str
    devices: str = "all"

    @property
    def device_names(self) -> tuple[str, ...]:
        """The names in `devices` as a tuple."""
        return tuple(self.devices.split(", "))

    @property
    def message(self) -> str:
        """The error message for the user."""
        return f"{self.name} is not supported: {self.reason} {self.change}"

    def message_on(self, device: str) -> str:
        """The error message for a user of `device`."""
        return f"{self.name} is not supported on {device}: {self.reason} {self.change}"
