"""The tokens that the last step sampled, on the device: the next one names them by their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rtp_llm import ops

if TYPE_CHECKING:
    from rtp_llm.device import Device


class SampledTokens:
    """Lets a step be submitted before the host knows the tokens of the step before.

    They lie at one place, so that captured graphs find them. All of it happens in the order of the
    device's work: a step reads the tokens before its own replace them.
    """

    def __init__(self, max_rows: int, device: Device) -> None:
        self._tokens = torch.zeros(max_rows, dtype=torch.int32, device=device.torch_device)

    def substitute(self, ids: Tensor) -> None:
        """Replace each -(r + 1) among ``ids`` (int32 [T]) by the token of row r, in place."""
        ops.substitute_tokens(ids, self._tokens)

    def keep(self, tokens: Tensor) -> None:
        """A step sampled ``tokens`` (int32 [R])."""
        self._tokens[: len(tokens)].copy_(tokens)
