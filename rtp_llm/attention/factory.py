"""Picks the attention backend, and explains the choice."""

from __future__ import annotations

import importlib

from rtp_llm.attention.backend import AttentionBackend, AttentionConfig
from rtp_llm.device import Support

# Each is imported only when a backend is chosen.
_BACKENDS = (
    "rtp_llm.attention.paged:PagedAttentionBackend",
    "rtp_llm.attention.triton:TritonAttentionBackend",
)


class NoBackendError(ValueError):
    """No backend supports what the model asks; the message has every backend's reason."""


def make_backend(config: AttentionConfig) -> AttentionBackend:
    """The supporting backend of highest priority; NoBackendError lists why each one said no."""
    answers = _ask(config)
    for backend, answer in answers:
        if answer:
            return backend(config)
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
    return "\n".join(lines)


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
