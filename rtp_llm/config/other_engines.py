# SPDX-License-Identifier: Apache-2.0
"""Replacements for the flags of other engines, for error messages and docs/from_*.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rtp_llm.config.counterparts import COUNTERPARTS
from rtp_llm.config.llama_cpp_flags import LLAMA_CPP
from rtp_llm.config.options import flag_name
from rtp_llm.config.suggestions import meant

# Names that several engines use have the meaning they have in vLLM and SGLang.
_BY_FLAG = {
    **{flag: (row.ours, row.note) for row in LLAMA_CPP for flag in row.names},
    **{flag: (row.ours, row.note) for row in COUNTERPARTS for flag in row.names},
}


def advice(flag: str, known: Iterable[str]) -> str:
    """Advice for the unknown `flag` ("--x-y"), given the `known` flags."""
    row = _BY_FLAG.get(flag)
    if row is None:
        known = [*known]
        positive = "--" + flag.removeprefix("--no-")
        if flag.startswith("--no-") and positive in known:
            return f"here it is {positive} off"
        near = meant(flag, [*known, *_BY_FLAG])
        if near is None:
            return "no such flag; --help lists them"
        return f"no such flag; did you mean {near}?" + _also(near)
    ours, note = row
    if not ours:
        return note
    names = " or ".join("MODEL" if name == "model" else flag_name(name) for name in ours)
    return f"here it is {names}" + (f" ({note})" if note else "")


def table() -> list[str]:
    """Return the lines of the table of flags in docs/from_vllm.md."""
    lines = ["| vLLM | SGLang | here |", "| --- | --- | --- |"]
    for row in COUNTERPARTS:
        cells = [f"`{flag}`" if flag else "" for flag in (row.vllm, row.sglang)]
        lines.append(f"| {cells[0]} | {cells[1]} | {_here(row.ours, row.note)} |")
    return lines


def llama_cpp_table() -> list[str]:
    """Return the lines of the table of flags in docs/from_llama_cpp.md."""
    lines = ["| llama.cpp | here |", "| --- | --- |"]
    for row in LLAMA_CPP:
        names = ", ".join(f"`{name}`" for name in row.names)
        lines.append(f"| {names} | {_here(row.ours, row.note)} |")
    return lines


def known_elsewhere(name: str) -> str | None:
    """Advice for a setting name of another engine (max_model_len), or None if unknown."""
    flag = flag_name(name)
    return advice(flag, ()) if flag in _BY_FLAG else None


def _here(settings: Sequence[str], note: str) -> str:
    ours = ", ".join("`MODEL`" if n == "model" else f"`{flag_name(n)}`" for n in settings)
    return f"{ours}: {note}" if ours and note else ours or f"none: {note}"


def _also(flag: str) -> str:
    return f" ({advice(flag, ())})" if flag in _BY_FLAG else ""
