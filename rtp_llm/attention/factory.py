# SPDX-License-Identifier: Apache-2.0
"""Picks the backend of a cache group's layers, and explains the choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rtp_llm.attention.backend import AttentionConfig, Backend, BackendConfig, PartialBackend
from rtp_llm.attention.linear_attention import LinearAttentionConfig
from rtp_llm.device import Support
from rtp_llm.device.choice import AUTO, ask, choose, load_class, outcomes

if TYPE_CHECKING:
    from rtp_llm.attention.decode import DecodeBackend

# The backends of every family of sequence mixers, each imported only when a backend is chosen. The
# setting attention_backend takes the names of the attention family only.
_BACKENDS = (
    "rtp_llm.attention.paged:PagedAttentionBackend",
    "rtp_llm.attention.flashinfer:FlashInferBackend",
    "rtp_llm.attention.triton:TritonAttentionBackend",
    "rtp_llm.attention.fp8_dequant:Fp8DequantBackend",
    "rtp_llm.attention.cuda_sm90:CudaSm90Backend",
    "rtp_llm.attention.mla_paged:PagedMlaBackend",
    "rtp_llm.attention.mla_triton:TritonMlaBackend",
    "rtp_llm.attention.mla_cuda_sm90:CudaSm90MlaBackend",
)
# Linear attention backends, which the setting does not affect.
_LINEAR_BACKENDS = (
    "rtp_llm.attention.linear_attention:GatedDeltaRuleBackend",
    "rtp_llm.attention.linear_attention:Mamba2Backend",
)
SETTING = "--attention-backend"
Answers = list[tuple[type[Backend[Any]], Support]]


def make_backend(config: BackendConfig) -> Backend[Any]:
    """Create the backend for `config`.

    This is the highest-priority backend that supports `config`, combined with a dedicated decode
    backend where one is available; or the backend that `config` names, for every step it supports.

    Raises NoChoiceError, which lists why each backend was rejected.
    """
    answers = _ask(config)
    first = _first(config, answers)
    usable = [backend for backend, answer in answers if answer]
    made: Backend[Any]
    if config.settings.attention_backend == AUTO:
        made = _with_decode(config, usable)
    elif issubclass(first, PartialBackend):
        others = [each for each in usable if each is not first]
        made = first(config, _with_decode(config, others))  # type: ignore[arg-type]  # its family
    else:
        made = first(config)
    return made


def check_backend(config: BackendConfig) -> None:
    """Raise NoChoiceError where make_backend would, without creating a backend."""
    _first(config, _ask(config))


def explain(config: BackendConfig) -> str:
    """Describe the chosen backend and every rejection, one per line, highest priority first."""
    answers = _ask(config)
    lines = [f"attention for {config}:"]
    for (backend, answer), outcome in zip(
        answers, outcomes(answers, config.settings.attention_backend, SETTING), strict=True
    ):
        note = backend.note(config) if answer else ""
        place = f"  {backend.name} (priority {backend.priority_for(config)})"
        lines.append(f"{place}: {outcome}" + (f"; {note}" if note else ""))
    if not isinstance(config, AttentionConfig):
        return "\n".join(lines)
    decode = _decode()
    answer = decode.supports(config)
    outcome = _decode_outcome(config) if answer else f"no: {answer.reason}"
    lines.append(f"  {decode.name} (with any of them): {outcome}")
    return "\n".join(lines)


def _decode_outcome(config: AttentionConfig) -> str:
    if config.settings.attention_backend == AUTO:
        return "chosen for steps of one token a sequence"
    forced = next(
        (each for each in _family(config) if each.name == config.settings.attention_backend), None
    )
    if forced is not None and issubclass(forced, PartialBackend):
        return f"chosen for decode steps in graphs, which {forced.name} leaves"
    return f"no: {SETTING} gives every step to {config.settings.attention_backend}"


def _decode() -> type[DecodeBackend]:
    """Return the backend that takes over decode steps from the chosen one where it can."""
    from rtp_llm.attention.decode import DecodeBackend

    return DecodeBackend


def _with_decode(config: BackendConfig, usable: Sequence[Any]) -> Any:
    backend = _stack(config, usable)
    if not isinstance(config, AttentionConfig) or not _decode().supports(config):
        return backend
    return _decode()(config, backend)


def _stack(config: BackendConfig, usable: Sequence[Any]) -> Any:
    """Create the first backend, stacked on the other backends that it needs."""
    first, *others = usable
    if issubclass(first, PartialBackend):
        return first(config, _stack(config, others))
    return first(config)


def _first(config: BackendConfig, answers: Answers) -> type[Any]:
    """Return the backend that `config` names, or the first one that supports it."""
    return choose(answers, config.settings.attention_backend, SETTING, f"attention for {config}")


def _ask(config: BackendConfig) -> Answers:
    return ask(_family(config), config, lambda backend: backend.priority_for(config))


def _family(config: BackendConfig) -> list[type[Backend[Any]]]:
    """Return the backends that accept configs of this type."""
    places = _LINEAR_BACKENDS if isinstance(config, LinearAttentionConfig) else _BACKENDS
    return [each for each in map(_load, places) if isinstance(config, each.config_class)]


def _load(place: str) -> type[Backend[Any]]:
    found: type[Backend[Any]] = load_class(place)
    return found
