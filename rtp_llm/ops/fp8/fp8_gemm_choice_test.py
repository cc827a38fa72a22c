# SPDX-License-Identifier: Apache-2.0
"""The switch, the thresholds and the limit of multiprocessors of FP8 GEMMs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rtp_llm.ops.fp8 import fp8_gemm_choice
from rtp_llm.ops.fp8.fp8_gemm_choice import Fp8GemmChoice


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    before = fp8_gemm_choice.current()
    yield
    fp8_gemm_choice.configure(before)


def test_each_form_has_its_threshold() -> None:
    choice = Fp8GemmChoice(linear_rows=32, short_rows=8, short_columns=4096, masked_rows=16)
    assert [choice.swaps_linear(rows, 4096) for rows in (1, 32, 33)] == [True, True, False]
    assert [choice.swaps_linear(rows, 2048) for rows in (1, 8, 9)] == [True, True, False]
    assert [choice.swaps_masked(rows, 20) for rows in (1, 16, 17)] == [True, True, False]


def test_where_no_rows_can_be_expected_the_capacity_decides() -> None:
    choice = Fp8GemmChoice(masked_rows=16)
    assert [choice.swaps_masked(rows, 16) for rows in (0, 17)] == [True, True]
    assert [choice.swaps_masked(rows, 17) for rows in (0, 18)] == [False, False]


def test_many_rows_are_left_to_the_library() -> None:
    choice = Fp8GemmChoice(own_rows=128, short_rows=64, short_columns=4096, wave_outputs=8448)
    assert [choice.leaves_to_library(rows, 8448, 2048) for rows in (128, 129)] == [False, True]
    assert [choice.leaves_to_library(rows, 8512, 2048) for rows in (64, 65)] == [False, True]
    assert [choice.leaves_to_library(rows, 8512, 4096) for rows in (128, 129)] == [False, True]
    # 16 by 8 tiles leave 4 multiprocessors idle, 16 by 9 need a second wave
    filled = [choice.leaves_to_library(rows, 16 * 128, 4096) for rows in (2048, 2304)]
    assert filled == [False, True]
    assert choice.leaves_to_library(256, 132 * 128, 4096), "too few rows for such tiles"
    ends = [choice.leaves_to_library(rows, 7168, 4096) for rows in (1024, 772)]
    assert ends == [False, True], "as many tiles, and the last ones nearly empty"
    assert not Fp8GemmChoice(num_sms=64).leaves_to_library(4096, 4096, 4096)


def test_switched_off_nothing_swaps() -> None:
    choice = Fp8GemmChoice(swap_ab=False)
    assert not choice.swaps_linear(1, 4096)
    assert not choice.swaps_masked(1, 8)


def test_settings_become_a_choice() -> None:
    assert Fp8GemmChoice.of(None, None, None) == Fp8GemmChoice()
    assert Fp8GemmChoice.of(True, None, None).swap_ab
    assert Fp8GemmChoice.of(False, 24, 100) == Fp8GemmChoice(
        swap_ab=False, linear_rows=24, short_rows=24, masked_rows=24, num_sms=100
    )


def test_the_limit_of_multiprocessors_ends_with_its_block() -> None:
    with fp8_gemm_choice.limited_sms(20):
        assert fp8_gemm_choice.current().num_sms == 20
        with fp8_gemm_choice.limited_sms(8):
            assert fp8_gemm_choice.current().num_sms == 8
        assert fp8_gemm_choice.current().num_sms == 20
    with pytest.raises(KeyError), fp8_gemm_choice.limited_sms(5):
        raise KeyError
    assert fp8_gemm_choice.current().num_sms == fp8_gemm_choice.ALL_SMS


@pytest.mark.parametrize("num_sms", [0, -2])
def test_a_limit_of_no_multiprocessors_is_refused(num_sms: int) -> None:
    with pytest.raises(ValueError, match="num_sms"), fp8_gemm_choice.limited_sms(num_sms):
        pass
