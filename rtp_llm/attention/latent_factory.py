"""Picks the backend for attention over latents, and explains the choice."""

from __future__ import annotations

from rtp_llm.attention.factory import SETTING
from rtp_llm.attention.latent import LatentBackend, LatentConfig
from rtp_llm.device import Support
from rtp_llm.device.choice import ask, choose, load_class, verdicts

# Each is imported only when a backend is chosen. The setting attention_backend has their names.
_BACKENDS = (
    "rtp_llm.attention.latent_paged:PagedLatentBackend",
    "rtp_llm.attention.latent_triton:TritonLatentBackend",
    "rtp_llm.attention.latent_hopper:HopperLatentBackend",
)


def make_latent_backend(config: LatentConfig) -> LatentBackend:
    """The supporting backend of highest priority, or the one that `config` names.

    NoChoiceError lists why each one said no.
    """
    return _first(config)(config)


def check_latent_backend(config: LatentConfig) -> None:
    """Raise NoChoiceError where make_latent_backend would; nothing is made."""
    _first(config)


def explain_latent(config: LatentConfig) -> str:
    """The choice and every rejection, one backend per line, the highest priority first."""
    answers = _ask(config)
    lines = [f"attention for {_describe(config)}:"]
    for (backend, _), verdict in zip(
        answers, verdicts(answers, config.backend, SETTING), strict=True
    ):
        lines.append(f"  {backend.name} (priority {backend.priority}): {verdict}")
    return "\n".join(lines)


def _first(config: LatentConfig) -> type[LatentBackend]:
    """The one that `config` names, or the first that says yes."""
    return choose(_ask(config), config.backend, SETTING, f"attention for {_describe(config)}")


def _ask(config: LatentConfig) -> list[tuple[type[LatentBackend], Support]]:
    return ask(map(load_class, _BACKENDS), config, lambda backend: backend.priority)


def _describe(config: LatentConfig) -> str:
    dtype = str(config.dtype).removeprefix("torch.")
    return (
        f"{config.device_type}, {dtype}, {config.num_heads} heads over latents of "
        f"{config.latent_size} and keys of {config.rope_size}, blocks of {config.block_size}"
    )
