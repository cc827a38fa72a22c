# SPDX-License-Identifier: Apache-2.0
"""Histories of tokens on the device, and drafts by prompt lookup in them.

`history` int32 [N, L] has a free row stride and is what sequences said and were asked; `lens` int32
[N] is how many tokens of each row count. Rows of outputs lie as a plan has them: output o has the
rows from cu_rows[o] to cu_rows[o + 1], one for the token behind its last one and one behind each of
its drafts. What the host cannot know is skipped: outputs whose history is not there (-1) or whose
rows are outside.
"""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import MutableTensor, operator


@operator(optional=True)
def match_ngrams(
    drafts: MutableTensor,
    history: Tensor,
    lens: Tensor,
    outputs: Tensor,
    cu_rows: Tensor,
    min_n: int,
    max_n: int,
) -> None:
    """Draft what followed the last tokens of each output where they occurred before, in place.

    drafts int32 [R]: the draft behind each row; the last row of an output has none and is not
    written. outputs int32 [O]: rows of the history; cu_rows int32 [O + 1]; 1 <= min_n <= max_n.

    Of the n-grams that a history ends on, max_n >= n >= min_n, the longest counts that occurred
    before, and of its occurrences the first. What followed it is drafted; a continuation that
    reaches the end goes on with itself, as of a text that repeats itself. Without an occurrence,
    and without a history, all drafts of the output are -1. RuntimeError on a mismatch.

    Source: prompt lookup decoding (https://github.com/apoorvumang/prompt-lookup-decoding).
    """


@operator(optional=True)
def append_accepted(
    history: MutableTensor,
    lens: MutableTensor,
    outputs: Tensor,
    cu_rows: Tensor,
    tokens: Tensor,
    drafts: Tensor,
) -> None:
    """Append to histories what a step accepted: tokens up to the first that is not its draft.

    outputs and cu_rows as for match_ngrams, no history named twice; tokens int32 [R], what each row
    sampled; drafts int32 [R], the draft behind it; that of an output's last row is not read. What
    does not fit into a history is dropped. RuntimeError on a mismatch.
    """
