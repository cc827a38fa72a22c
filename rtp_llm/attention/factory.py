"""Picks the attention backend, and explains the choice."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from rtp_llm.attention.backend import AttentionBackend, AttentionConfig
from rtp_llm.device import Support

if TYPE_CHECKING:
    from rtp_llm.attention.decode import DecodeBackend

# Each is imported only when a backend is chosen.
_BACKENDS = (
    "rtp_llm.attention.paged:PagedAttentionBackend",
    "rtp_llm.attention.triton:TritonAttentionBackend",
    "rtp_llm.attention.hopper:HopperAttentionBackend",
)


class NoBackendError(ValueError):
    """No backend supports what the model asks; the message has every backend's reason."""


def make_backend(config: AttentionConfig) -> AttentionBackend:
    """The supporting backend of highest priority, with one for decode steps beside it if it can.

    NoBackendError lists why each one said no.
    """
    answers = _ask(config)
    for backend, answer in answers:
        if answer:
            return _with_decode(backend(config))
    reasons = "; ".join(f"{backend.name}: {answer.reason}" for backend, answer in answers)
    raise NoBackendError(f"no attention backend for {_describe(config)}: {reasons}")


def explain(config: AttentionConfig) -> str:
    """The choice and every rejection, one backend per line, the chosen one first."""
    lines = [f"attention for {_describe(config)}:"]
    taken = False
    for backend, answer in _ask(config):
        if answer:
            verdict = "supported, lower priority" if taken else "chosen"
            taken = True
        else:
            verdict = f"no: {answer.reason}"
        lines.append(f"  {backend.name} (priority {backend.priority}): {verdict}")
    decode = _decode()
    answer = decode.supports(config)
    verdict = "chosen for steps of one token a sequence" if answer else f"no: {answer.reason}"
    lines.append(f"  {decode.name} (beside them): {verdict}")
    return "\n".join(lines)


def _decode() -> type[DecodeBackend]:
    """What takes the decode steps from whichever is chosen, where it can."""
    from rtp_llm.attention.decode import DecodeBackend

    return DecodeBackend


def _with_decode(backend: AttentionBackend) -> AttentionBackend:
    decode = _decode()
    return decode(backend.config, backend) if decode.supports(backend.config) else backend


def _ask(config: AttentionConfig) -> list[tuple[type[AttentionBackend], Support]]:
    """Every backend's answer, highest priority first (the table's order among equals)."""
    backends = sorted(map(_load, _BACKENDS), key=lambda backend: -backend.priority)
    return [(backend, backend.supports(config)) for backend in backends]


def _load(place: str) -> type[AttentionBackend]:
    module, _, name = place.partition(":")
    found: type[AttentionBackend] = getattr(importlib.import_module(module), name)
    return found


def _describe(config: AttentionConfig) -> str:
    windows = ", ".join(str(window) for window in config.windows if window)
    kind = f"window {windows}" if windows else "full"
    kind += ", and full" if windows and 0 in config.windows else ""
    dtype = str(config.dtype).removeprefix("torch.")
    return (
        f"{config.device_type}, {dtype}, {config.num_heads} heads over {config.num_kv_heads} "
        f"KV heads of {config.head_dim}, blocks of {config.block_size}, {kind}"
    )
