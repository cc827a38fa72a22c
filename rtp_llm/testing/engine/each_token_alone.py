# SPDX-License-Identifier: Apache-2.0
"""CPU attention that gives a token the same bits regardless of how its prompt is chunked.

The kernel reads keys in place for few queries and packs them for many, and the two round
differently, as do the two forms of MLA. The rest of a step treats tokens alike.
Without this, tests that compare tokens across different chunks would depend on near ties, which
processors may decide differently.
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
    """Context in which engines compute attention for each token separately."""
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
