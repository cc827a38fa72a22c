"""Tokens that only the device knows yet: steps name them, and find them at one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rtp_llm import ops

if TYPE_CHECKING:
    from rtp_llm.device import Device, Download


class SampledTokens:
    """What lets a step be submitted before the host knows the tokens that it is computed from.

    Those of the last step are named by their rows there; drafts of the step at hand, where the
    device finds them, by the rows that they follow. They lie at one place, so that captured graphs
    find them. All of it happens in the order of the device's work: a step reads the tokens before
    its own replace them.
    """

    def __init__(self, max_rows: int, device: Device) -> None:
        self._device = device
        self._tokens = torch.zeros(2 * max_rows, dtype=torch.int32, device=device.torch_device)
        self._rows, self.drafts = self._tokens[:max_rows], self._tokens[max_rows:]

    def substitute(self, ids: Tensor) -> None:
        """Replace names among ``ids`` (int32 [T]) by their tokens, in place.

        -(r + 1) is the token of row r of the step before, -(max_rows + r + 1) the draft behind row
        r of this one; token 0 stands in for a draft of -1, which is not there.
        """
        ops.substitute_tokens(ids, self._tokens)

    def keep(self, tokens: Tensor) -> None:
        """A step sampled ``tokens`` (int32 [R])."""
        self._rows[: len(tokens)].copy_(tokens)

    def tokens(self, num_rows: int) -> Tensor:
        """Those of the last step, int32 [num_rows]."""
        return self._rows[:num_rows]

    def download(self) -> Download:
        """All that names stand for, int32 [2 max_rows]: the token of name -(i + 1) is number i."""
        return self._device.start_download(self._tokens)

    def download_drafts(self, num_rows: int) -> Download:
        """The drafts of this step, int32 [num_rows]; meaningless behind rows that have none."""
        return self._device.start_download(self.drafts[:num_rows].clone())
