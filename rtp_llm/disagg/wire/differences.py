# SPDX-License-Identifier: Apache-2.0
"""Why two workers cannot exchange blocks, in words: what differs, and what to set."""

from __future__ import annotations

_FOLDER = "serve the same model folder on both"
_REMEDIES = {
    "model": _FOLDER,
    "speculative": "give both the same --speculative, --speculative-model, "
    "--num-speculative-tokens and --draft-sample-method",
    "layers": _FOLDER,
    "vocabulary": _FOLDER,
    "group": _FOLDER,  # and its number
    "content": _FOLDER,
    "dtype": "give both the same --kv-cache-dtype and --dtype",
    "block_size": "give both the same --seq-size-per-block",
    "tp": "start both with as many tensor-parallel ranks",
    "weights": "give both the same --dtype",
    "quantization": "give both the same --quantization",
    "protocol": "install the same version of rtp-llm on both",
}
_UNKNOWN = "install the same version of rtp-llm on both, and give both the same settings"
# A handshake may contain anything, and it is logged.
_MAX_LINES, _MAX_LETTERS = 16, 80


def explain(there: tuple[int, str], here: tuple[int, str]) -> list[str]:
    """One line for each difference between two (protocol, fingerprint) pairs, with the remedy."""
    theirs, ours = _fields(*there), _fields(*here)
    names = [name for name in {**ours, **theirs} if theirs.get(name) != ours.get(name)]
    if "speculative" in names:  # what drafts has layers of its own
        names = [name for name in names if name.rstrip("0123456789") not in ("layers", "group")]
    return [
        f"{_shown(name)} is {_shown(theirs.get(name))} there and {_shown(ours.get(name))} here: "
        f"{_REMEDIES.get(name.rstrip('0123456789'), _UNKNOWN)}"
        for name in names[:_MAX_LINES]
    ]


def _shown(value: str | None) -> str:
    if value is None:
        return "not said"
    return value[:_MAX_LETTERS] if value.isprintable() else "unreadable"


def _fields(protocol: int, fingerprint: str) -> dict[str, str]:
    """The fields of a fingerprint as written by rtp_llm.worker.cache.transfer.layout."""
    model, *words = fingerprint.split(" ")
    fields = {"protocol": str(protocol), "model": model}
    for word in words:
        name, _, value = word.partition("=")
        fields[name] = value
    return fields
