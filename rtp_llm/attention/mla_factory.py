"""Picks the backend for attention over latents, and explains the choice."""

from __future__ import annotations

from rtp_llm.attention.factory import SETTING
from rtp_llm.attention.mla import MlaBackend, MlaConfig
from rtp_llm.device import Support
from rtp_llm.device.choice import ask, choose, load_class, verdicts

# Each is imported only when a backend is chosen. The setting attention_backend has their names.
_BACKENDS = (
    "rtp_llm.attention.mla_paged:PagedMlaBackend",
    "rtp_llm.attention.mla_triton:TritonMlaBackend",
    "rtp_llm.attention.mla_sm90:Sm90MlaBackend",
)


def make_mla_backend(config: MlaConfig) -> MlaBackend:
    """The supporting backend of highest priority, or the one that `config` names.

    NoChoiceError lists why each one said no.
    """
    return _first(config)(config)


def check_mla_backend(config: MlaConfig) -> None:
    """Raise NoChoiceError where make_mla_backend would; nothing is made."""
    _first(config)


def explain_mla(config: MlaConfig) -> str:
    """The choice and every rejection, one backend per line, the highest priority first."""
    answers = _ask(config)
    lines = [f"attention for {_describe(config)}:"]
    for (backend, _), verdict in zip(
        answers, verdicts(answers, config.backend, SETTING), strict=True
    ):
        lines.append(f"  {backend.name} (priority {backend.priority}): {verdict}")
    return "\n".join(lines)


def _first(config: MlaConfig) -> type[MlaBackend]:
    """The one that `config` names, or the first that says yes."""
    return choose(_ask(config), config.backend, SETTING, f"attention for {_describe(config)}")


def _ask(config: MlaConfig) -> list[tuple[type[MlaBackend], Support]]:
    return ask(map(load_class, _BACKENDS), config, lambda backend: backend.priority)


def _describe(config: MlaConfig) -> str:
    dtype = str(config.dtype).removeprefix("torch.")
    return (
        f"{config.device_type}, {dtype}, {config.num_heads} heads over latents of "
        f"{config.latent_size} and keys of {config.rope_size}, blocks of {config.block_size}"
    )
