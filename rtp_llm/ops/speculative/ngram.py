# SPDX-License-Identifier: Apache-2.0
"""Histories of tokens on the device, and drafts by prompt lookup in them.

`history` int32 [N, L], with a free row stride, holds the prompts and outputs of sequences; `lens`
int32 [N] is the number of tokens in each row. Rows of outputs are as in a plan: output o has the
rows from cu_rows[o] to cu_rows[o + 1], one after its last token and one after each of its drafts.
What the host cannot know is skipped: outputs without a history (-1) or with rows out of range.
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
    """In place: draft what followed the last tokens of each output at their earlier occurrence.

    drafts int32 [R]: the draft after each row; the last row of an output has none and is not
    written. outputs int32 [O]: rows of the history; cu_rows int32 [O + 1]; 1 <= min_n <= max_n.

    Among the n-grams with max_n >= n >= min_n that end a history, the longest one that occurred
    before counts, at its first occurrence. The tokens that followed it are drafted; a continuation
    that reaches the end of the history repeats itself. Without an occurrence, or without a history,
    all drafts of the output are -1. RuntimeError on a mismatch.

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
    """In place: append a step's accepted tokens to histories: up to the first unlike its draft.

    outputs and cu_rows as for match_ngrams, with no history named twice; tokens int32 [R], sampled
    by each row; drafts int32 [R], the draft after each row; the last row's of an output is not
    read. Tokens that do not fit into a history are dropped. RuntimeError on a mismatch.
    """
