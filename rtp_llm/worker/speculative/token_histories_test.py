# SPDX-License-Identifier: Apache-2.0
"""Token histories: who has one, and that prompts arrive in parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from rtp_llm.device import resolve_device
from rtp_llm.worker.speculative.token_histories import NO_HISTORY, TokenHistories, history_bytes


def make(num_histories: int = 4, chunk: int = 100) -> TokenHistories:
    return TokenHistories(num_histories, 61, 16, resolve_device("cpu"), chunk=chunk)


def slots(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def prompt(length: int, first: int = 1) -> NDArray[np.int32]:
    return np.arange(first, first + length, dtype=np.int32)


def text_of(histories: TokenHistories, history: int) -> list[int]:
    text: list[int] = histories.tokens[history, : int(histories.lens[history])].tolist()
    return text


def known(histories: TokenHistories, *of: int) -> Sequence[bool]:
    found = histories.of_step(slots(*of))
    complete: Sequence[bool] = (histories.complete(found) != NO_HISTORY).tolist()
    return complete


def test_a_history_begins_with_the_prompt() -> None:
    histories = make()
    histories.add([10, 11], [5, 2], prompt(7))
    histories.add([12], [0], prompt(3, 50))
    found = histories.of_step(slots(2, 0, 9, 5))
    assert len({*found.tolist()}) == 4
    assert found[2] == NO_HISTORY, "nobody was added there"
    assert histories.complete(found).tolist() == found.tolist()
    assert text_of(histories, found[0]) == text_of(histories, found[3]) == prompt(7).tolist()
    assert text_of(histories, found[1]) == [50, 51, 52]
    assert histories.of_step(slots(5, 2)).tolist() == [found[3], found[0]], "it stays"
    assert histories.num_sequences == 3


def test_prompts_arrive_in_parts_and_in_order() -> None:
    histories = make(chunk=10)
    histories.add([1], [1], prompt(25))
    histories.add([2], [2], prompt(4, 70))
    histories.add([3], [3], prompt(6, 90))
    assert known(histories, 1, 2) == [False, False]
    assert sorted(histories.lens.tolist()) == [0, 0, 4, 25], "what follows has its place"
    assert known(histories, 1, 2, 3) == [False, False, False]
    assert known(histories, 1, 2, 3) == [True, True, False], "the third step had 5 + 4 + 1"
    assert known(histories, 1, 2, 3) == [True, True, True]
    for slot, expected in ((1, prompt(25)), (2, prompt(4, 70)), (3, prompt(6, 90))):
        assert text_of(histories, histories.of_step(slots(slot))[0]) == expected.tolist()


def test_whoever_finds_no_free_one_has_none() -> None:
    histories = make(2)
    for number in range(3):
        histories.add([number], [number], prompt(3, 10 * number))
    assert known(histories, 0, 1, 2) == [True, True, False]
    histories.end([0, 99])
    assert known(histories, 1, 2) == [True, False], "its output is not known any more"
    histories.add([7], [0], prompt(4, 40))
    assert known(histories, 0, 1) == [True, True]
    assert text_of(histories, histories.of_step(slots(0))[0]) == [40, 41, 42, 43]
    histories.end([1, 2, 7])
    assert histories.num_sequences == 0


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_an_end_while_the_prompt_arrives(steps: int) -> None:
    """Whoever gets the history next is not written into."""
    histories = make(1, chunk=10)
    histories.add([1], [1], prompt(25))
    for _ in range(steps):
        assert known(histories, 1) == [False]
    histories.end([1])
    histories.add([2], [1], prompt(12, 70))
    assert known(histories, 1) == [False]
    assert known(histories, 1) == [True]
    assert text_of(histories, 0) == prompt(12, 70).tolist()
    assert known(histories, 1) == [True]


def test_bytes() -> None:
    histories = make(4)
    assert histories.tokens.nbytes + histories.lens.nbytes == history_bytes(4, 61)
    assert histories.tokens.stride(0) % 4 == 0, "16 bytes are read at once"
