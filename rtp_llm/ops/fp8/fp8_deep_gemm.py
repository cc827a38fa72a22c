# SPDX-License-Identifier: Apache-2.0
"""DeepGEMM (https://github.com/deepseek-ai/DeepGEMM) as a backend of FP8 products: used where it is
installed, for the sizes at which it was quicker than everything here (docs/fp8.md).

It compiles a kernel when it first meets a kind of size, in seconds, and keeps it on disk; steps
that are captured as graphs meet theirs before a request does.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor

from rtp_llm.ops.fp8.fp8_blocks import BLOCK, E4M3
from rtp_llm.ops.fp8.fp8_gemm_choice import rows_of_group

_logger = logging.getLogger("rtp_llm.ops")
# By (N, K) of the weight, ranges of rows of a plain product: benchmark/gpu_fp8_gemm.py on an H200.
_QUICKER: dict[tuple[int, int], tuple[range, ...]] = {
    (24576, 1536): (range(129, 8193),),
    (4096, 7168): (range(48, 768), range(1536, 8193)),
    (7168, 2048): (range(48, 65), range(3072, 8193)),
    (6144, 16384): (range(48, 384), range(768, 8193)),
}
# By (G, N, K) of the weight, rows that a group has as a rule.
_QUICKER_MASKED: dict[tuple[int, ...], range] = {(8, 4096, 7168): range(65, 129)}


@functools.cache
def _library(device: torch.device) -> ModuleType | None:
    """The module, if it multiplies there: it needs its torch, its CUDA, and a compiler."""
    try:
        library = importlib.import_module("deep_gemm")
        _try(library, device)
    except ModuleNotFoundError:
        return None
    except Exception as error:  # whatever its import, its compiler or its checks raise
        _logger.warning("DeepGEMM is installed and does not work, so it is not used: %s", error)
        return None
    return library


def _try(library: ModuleType, device: torch.device) -> None:
    numbers = torch.zeros(1, BLOCK, BLOCK, device=device).to(E4M3)
    rows = numbers, torch.ones(1, 1, BLOCK, device=device).mT
    weight = numbers, torch.ones(1, 1, 1, device=device)
    out = torch.empty(1, BLOCK, BLOCK, dtype=torch.bfloat16, device=device)
    counts = torch.ones(1, dtype=torch.int32, device=device)
    masked_form(library)(rows, weight, out, counts, 1)
    library.fp8_gemm_nt((rows[0][0], rows[1][0]), (weight[0][0], weight[1][0]), out[0])


def masked_form(library: ModuleType) -> Callable[..., None]:
    """The masked grouped GEMM, by its current name or its name in releases before 4-bit weights."""
    names = "m_grouped_fp8_fp4_gemm_nt_masked", "m_grouped_fp8_gemm_nt_masked"
    name = names[0] if hasattr(library, names[0]) else names[1]
    form: Callable[..., None] = getattr(library, name)
    return form


def takes(x: Tensor, weight: Tensor) -> bool:
    """Whether it was quicker at x [M, K] by weight [N, K], and is there."""
    ranges = _QUICKER.get((weight.shape[0], weight.shape[1]), ())
    if not any(x.shape[0] in rows for rows in ranges):
        return False
    return x.is_cuda and _library(x.device) is not None


def takes_masked(x: Tensor, weight: Tensor, expected_m: int) -> bool:
    """Whether it was quicker at x [G, Mmax, K] by weight [G, N, K], and is there."""
    rows = _QUICKER_MASKED.get(tuple(weight.shape), range(0))
    expected = rows_of_group(expected_m, x.shape[1])
    return expected in rows and x.is_cuda and _library(x.device) is not None


def product(q: Tensor, scales: Tensor, weight: Tensor, weight_scales: Tensor) -> Tensor:
    """As rtp_llm.ops.fp8_linear, for what `takes` says. RuntimeError on a mismatch."""
    library = _library(q.device)
    assert library is not None
    out = q.new_empty((q.shape[0], weight.shape[0]), dtype=torch.bfloat16)
    library.fp8_gemm_nt((q, scales[:, : q.shape[0]].T), (weight, weight_scales), out)
    return out


def masked(
    q: Tensor,
    scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    masked_m: Tensor,
    expected_m: int,
) -> Tensor:
    """As rtp_llm.ops.fp8_grouped_masked, for what `takes_masked` says."""
    library = _library(q.device)
    assert library is not None
    most = q.shape[1]
    out = q.new_empty((*q.shape[:2], weight.shape[1]), dtype=torch.bfloat16)
    rows = q, scales[..., :most].mT
    expected = rows_of_group(expected_m, most)
    masked_form(library)(rows, (weight, weight_scales), out, masked_m, expected)
    return out
