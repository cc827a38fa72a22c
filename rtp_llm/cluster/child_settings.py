"""What the processes on the cluster's machines are told: environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rtp_llm.config.command_line import environment_name
from rtp_llm.config.options import plain_number
from rtp_llm.config.settings import options

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings

_OF_DRIVER = frozenset(
    ("model", "cluster", "data_parallel_size", "host", "port", "allowed_hosts", "page")
)
# These say what one process on one machine has.
_OF_WORKER = frozenset(("LOCAL_RANK", "RANK", "WORLD_SIZE", "HOSTNAME", "PWD", "TMPDIR"))
_DEVICES = ("_VISIBLE_DEVICES", "_AFFINITY_MASK")  # which Ray sets for each of its actors


def child_environment(settings: Settings, environ: Mapping[str, str], **own: Any) -> dict[str, str]:
    """The driver's environment but for what is one process's own, and its settings; ``own``: those
    of this child."""
    copied = {
        name: value
        for name, value in environ.items()
        if name not in _OF_WORKER and not name.startswith("RAY_") and not name.endswith(_DEVICES)
    }
    for name in options():
        value = own.get(name, getattr(settings, name))
        if name not in _OF_DRIVER or name in own:
            if value != getattr(type(settings), name, None):
                copied[environment_name(name)] = _written(value)
        else:
            copied.pop(environment_name(name), None)
    return copied


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return plain_number(value) if isinstance(value, (int, float)) else str(value)
