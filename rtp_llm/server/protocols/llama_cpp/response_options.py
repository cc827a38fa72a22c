# SPDX-License-Identifier: Apache-2.0
"""Response options."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class InfillResponseOptions:
    """`fields`: fields of the complete answer or the last event; empty: all of them.

    `show_tokens`: include token ids in a complete answer; `drop_answer`: only the prompt was
    requested; `truncated`: the prompt was cut to fit; `indent_pattern`: stop_regex for `n_indent`;
    `predict_seconds`: see `t_max_predict_ms`, 0: no limit.
    """

    model: str
    fields: tuple[str, ...] = ()
    show_tokens: bool = False
    drop_answer: bool = False
    truncated: bool = False
    indent_pattern: str = ""
    predict_seconds: float = 0.0
