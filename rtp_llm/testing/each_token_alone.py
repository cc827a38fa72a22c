# SPDX-License-Identifier: Apache-2.0
"""Attention on the CPU that gives a token the same bits in whatever chunk it is computed.

Its kernel reads the keys of few queries in place and packs them for many, and the two round
otherwise; so do the two forms of MLA. All the rest of a step treats tokens alike.
Without this, tests that compare tokens over different chunks would depend on close calls, which no
processor need decide as another one does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.attention import mla_step


@contextmanager
def each_token_alone() -> Iterator[None]:
    """Engines that are built and used inside attend for each token as for a sequence's only one."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(mla_step, "LEAST_EXPANDED", 2**30)
        for name in ("paged_attention", "mla_attention"):
            patched.setattr(ops, name, _alone(getattr(ops, name)))
        yield


def _alone(kernel: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def attend(q: Tensor, cache: Tensor, *numbers: Any, **options: Any) -> Tensor:
        starts, lengths, table, *rest = numbers
        sequence = torch.repeat_interleave(torch.arange(len(lengths)), starts.diff())
        later = starts[1:][sequence] - 1 - torch.arange(len(sequence))  # of its sequence
        alone = torch.arange(len(sequence) + 1, dtype=torch.int32)
        seen = (lengths[sequence] - later).int()
        return kernel(q, cache, alone, seen, table[sequence], *rest, **options)

    return attend
