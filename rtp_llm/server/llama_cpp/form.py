# SPDX-License-Identifier: Apache-2.0
"""How an answer is shown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class InfillForm:
    """`fields`: those that the whole answer, or the last event, has; empty: all of them.

    `show_tokens`: also those of a whole answer; `drop_answer`: only the prompt was asked for;
    `truncated`: it was cut to fit; `indent_pattern`: of stop_regex, what `n_indent` became;
    `predict_seconds`: see `t_max_predict_ms`, 0: no limit.
    """

    model: str
    fields: tuple[str, ...] = ()
    show_tokens: bool = False
    drop_answer: bool = False
    truncated: bool = False
    indent_pattern: str = ""
    predict_seconds: float = 0.0
