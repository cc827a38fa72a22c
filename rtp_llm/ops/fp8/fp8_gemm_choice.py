# SPDX-License-Identifier: Apache-2.0
"""How FP8 GEMMs are run: the table of thresholds of swap-AB, its switch, and the limit of
multiprocessors. One state for the process, set at start-up before any worker multiplies.

With swap-AB the weight is the tall operand of the matrix instruction (64 rows) and the tokens the
narrow one (8 to 64), so that few tokens waste nothing. Each threshold is what a benchmark showed
(benchmark/gpu_fp8_gemm.py, docs/performance_models.md).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

ALL_SMS = -1
_MULTIPROCESSORS = 132  # of an H100 or H200 (SXM)


@dataclass(frozen=True)
class Fp8GemmChoice:
    """`swap_ab`: whether it is used at all, and up to how many rows of each form; `short_rows` of
    plain ones where a row of the weight has fewer than `short_columns` channels. `num_sms`:
    multiprocessors that GEMMs may use, -1 for all. The rest: when cuBLASLt multiplies, where it
    takes the sizes: plain products of more than `own_rows` rows, and those that short rows leave
    where the weight has more than `wave_outputs` rows: more than a wave of our tiles; but not those
    of more than `few_rows` that keep all multiprocessors busy with our widest tiles."""

    swap_ab: bool = True
    linear_rows: int = 128
    short_rows: int = 64
    short_columns: int = 4096
    masked_rows: int = 64
    num_sms: int = ALL_SMS
    own_rows: int = 128
    wave_outputs: int = 8448
    few_rows: int = 256

    @staticmethod
    def of(swap_ab: bool | None, rows: int | None, num_sms: int | None) -> Fp8GemmChoice:
        """The choice that settings ask for; None keeps the measured default."""
        choice = Fp8GemmChoice(
            swap_ab=swap_ab is not False, num_sms=ALL_SMS if num_sms is None else num_sms
        )
        if rows is None:
            return choice
        return replace(choice, linear_rows=rows, short_rows=rows, masked_rows=rows)

    def swaps_linear(self, rows: int, columns: int) -> bool:
        """Whether a plain GEMM of x [rows, columns] swaps A and B."""
        return self.swap_ab and rows <= self._swapped_rows(columns)

    def swaps_masked(self, expected_rows: int, max_rows: int) -> bool:
        """Whether a masked grouped GEMM swaps A and B; without an expectation, judged by
        `max_rows`.
        """
        return self.swap_ab and rows_of_group(expected_rows, max_rows) <= self.masked_rows

    def leaves_to_library(self, rows: int, outputs: int, columns: int) -> bool:
        """Whether cuBLASLt is faster for a plain GEMM of [rows, columns] and [outputs, columns].

        False when multiprocessors are limited, which cuBLASLt does not support.
        """
        if self.num_sms != ALL_SMS:
            return False
        own = self.own_rows if outputs <= self.wave_outputs else self._swapped_rows(columns)
        return rows > own and not (rows > self.few_rows and _fills_waves(rows, outputs))

    def _swapped_rows(self, columns: int) -> int:
        return self.short_rows if columns < self.short_columns else self.linear_rows


def _fills_waves(rows: int, outputs: int) -> bool:
    """Whether waves of 256 x 128 tiles compute at most a sixth more than the result needs."""
    tiles = -(-rows // 256) * -(-outputs // 128)
    waves = -(-tiles // _MULTIPROCESSORS)
    return 6 * rows * outputs >= 5 * waves * _MULTIPROCESSORS * 256 * 128


def rows_of_group(expected_rows: int, max_rows: int) -> int:
    """The typical rows of a group; the most it may have if no sensible expectation is given."""
    return expected_rows if 0 < expected_rows <= max_rows else max_rows


class _State:
    choice = Fp8GemmChoice()


def current() -> Fp8GemmChoice:
    """The choice that GEMMs use: the one last set with configure(), or the defaults."""
    return _State.choice


def configure(choice: Fp8GemmChoice) -> None:
    """Set the choice that GEMMs use. ValueError if num_sms is neither -1 nor at least 1."""
    if choice.num_sms != ALL_SMS and choice.num_sms < 1:
        raise ValueError(f"num_sms is {choice.num_sms}; expected -1 for all, or at least 1")
    _State.choice = choice


@contextlib.contextmanager
def limited_sms(num_sms: int) -> Iterator[None]:
    """Limit GEMMs inside to `num_sms` multiprocessors (-1: all); restores the choice afterwards."""
    before = _State.choice
    configure(replace(before, num_sms=num_sms))
    try:
        yield
    finally:
        _State.choice = before
