# SPDX-License-Identifier: Apache-2.0
"""Each thing that two workers may differ in is named with what to set."""

from __future__ import annotations

import pytest

from rtp_llm.config.refusals import get_refusal
from rtp_llm.disagg.wire.differences import explain

OURS = (
    "Qwen3ForCausalLM layers=3 vocabulary=199 dtype=float32 block_size=4 group0=full:2x2x64:0,2 "
    "group1=sliding_window-8:2x2x64:1 tp=1 weights=float32 quantization=none "
    "content=0123456789abcdef"
)


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ("Qwen3", "Llama", "model is LlamaForCausalLM there and Qwen3ForCausalLM here: serve the"),
        ("=01", "=99", "content is 9923456789abcdef there .* serve the same model folder on both"),
        ("block_size=4", "block_size=8", "block_size is 8 there and 4 here: .*seq-size-per-block"),
        ("dtype=float32", "dtype=float8_e4m3fn", "dtype is float8_e4m3fn .*--kv-cache-dtype"),
        ("weights=float32", "weights=bfloat16", "weights is bfloat16 there .*--dtype"),
        ("=none", "=int8", "quantization is int8 there .*--quantization"),
        ("-8", "-16", "group1 is sliding_window-16:2x2x64:1 there .*serve the same model folder"),
        ("2x2x64:0", "2x4x64:0", "group0 is full:2x4x64:0,2 there and full:2x2x64:0,2 here"),
        ("tp=1", "tp=2", "tp is 2 there and 1 here: start both with as many tensor-parallel"),
        (" tp=1", "", "tp is not said there and 1 here"),
        ("tp=1", "tp=1 cp=2", "cp is 2 there and not said here: install the same version"),
        ("tp=1", "tp=1\n", "tp is unreadable there"),
        ("tp=1", "tp=" + "1" * 9000, "tp is 1{80} there"),
    ],
)
def test_what_differs_is_named_with_the_remedy(ours: str, theirs: str, expected: str) -> None:
    import re

    (line,) = explain((1, OURS.replace(ours, theirs)), (1, OURS))
    assert re.match(expected, line), line


def test_the_table_of_refusals_says_the_same_of_ranks() -> None:
    row = get_refusal(
        "disaggregation", "recurrent states of workers with unequal --tensor-parallel-size"
    )
    (line,) = explain((1, OURS.replace("tp=1", "tp=2")), (1, OURS))
    assert line.endswith(f": {row.change[0].lower()}{row.change[1:-1]}")


def test_what_is_equal_is_not_named() -> None:
    assert not explain((1, OURS), (1, OURS))
    (line,) = explain((2, OURS), (1, OURS))
    assert line.startswith("protocol is 2 there and 1 here: install the same version")
    assert len(explain((1, " ".join(f"a{word}=1" for word in range(10_000))), (1, OURS))) == 16
