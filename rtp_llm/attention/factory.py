"""Picks the attention backend, and explains the choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rtp_llm.attention.backend import AttentionBackend, AttentionConfig, PartialBackend
from rtp_llm.device import Support
from rtp_llm.device.choice import AUTO, ask, choose, load_class, verdicts

if TYPE_CHECKING:
    from rtp_llm.attention.decode import DecodeBackend

# Each is imported only when a backend is chosen. The setting attention_backend has their names.
_BACKENDS = (
    "rtp_llm.attention.paged:PagedAttentionBackend",
    "rtp_llm.attention.flashinfer:FlashInferBackend",
    "rtp_llm.attention.triton:TritonAttentionBackend",
    "rtp_llm.attention.widened:WidenedBackend",
    "rtp_llm.attention.hopper:HopperAttentionBackend",
)
SETTING = "--attention-backend"
Answers = list[tuple[type[AttentionBackend], Support]]


def make_backend(config: AttentionConfig) -> AttentionBackend:
    """The supporting backend of highest rank, with one for decode steps beside it if it can; or the
    one that `config` names, for every step that it takes.

    NoChoiceError lists why each one said no.
    """
    answers = _ask(config)
    first = _first(config, answers)
    usable = [backend for backend, answer in answers if answer]
    if config.backend == AUTO:
        return _with_decode(config, usable)
    if issubclass(first, PartialBackend):
        others = [each for each in usable if each is not first]
        return first(config, _with_decode(config, others))
    return first(config)


def check_backend(config: AttentionConfig) -> None:
    """Raise NoChoiceError where make_backend would; nothing is made."""
    _first(config, _ask(config))


def explain(config: AttentionConfig) -> str:
    """The choice and every rejection, one backend per line, the highest priority first."""
    answers = _ask(config)
    lines = [f"attention for {_describe(config)}:"]
    for (backend, answer), verdict in zip(
        answers, verdicts(answers, config.backend, SETTING), strict=True
    ):
        remark = backend.remark(config) if answer else ""
        place = f"  {backend.name} (priority {backend.rank(config)})"
        lines.append(f"{place}: {verdict}" + (f"; {remark}" if remark else ""))
    decode = _decode()
    answer = decode.supports(config)
    verdict = _decode_verdict(config) if answer else f"no: {answer.reason}"
    lines.append(f"  {decode.name} (beside them): {verdict}")
    return "\n".join(lines)


def _decode_verdict(config: AttentionConfig) -> str:
    if config.backend == AUTO:
        return "chosen for steps of one token a sequence"
    forced = next((each for each in map(_load, _BACKENDS) if each.name == config.backend), None)
    if forced is not None and issubclass(forced, PartialBackend):
        return f"chosen for those of recorded steps, which {forced.name} leaves"
    return f"no: {SETTING} gives every step to {config.backend}"


def _decode() -> type[DecodeBackend]:
    """What takes the decode steps from whichever is chosen, where it can."""
    from rtp_llm.attention.decode import DecodeBackend

    return DecodeBackend


def _with_decode(
    config: AttentionConfig, usable: Sequence[type[AttentionBackend]]
) -> AttentionBackend:
    decode, backend = _decode(), _stack(config, usable)
    return decode(config, backend) if decode.supports(config) else backend


def _stack(config: AttentionConfig, usable: Sequence[type[AttentionBackend]]) -> AttentionBackend:
    """The first one, with what it needs of the others below it."""
    first, *others = usable
    if issubclass(first, PartialBackend):
        return first(config, _stack(config, others))
    return first(config)


def _first(config: AttentionConfig, answers: Answers) -> type[AttentionBackend]:
    """The one that `config` names, or the first that says yes."""
    return choose(answers, config.backend, SETTING, f"attention for {_describe(config)}")


def _ask(config: AttentionConfig) -> Answers:
    return ask(map(_load, _BACKENDS), config, lambda backend: backend.rank(config))


def _load(place: str) -> type[AttentionBackend]:
    found: type[AttentionBackend] = load_class(place)
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
