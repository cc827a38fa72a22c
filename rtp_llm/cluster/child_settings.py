# SPDX-License-Identifier: Apache-2.0
"""Settings of the processes on the cluster's machines, passed as environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rtp_llm.config.command_line import environment_name
from rtp_llm.config.options import SettingsError, plain_number
from rtp_llm.config.roles import READERS, check_role
from rtp_llm.config.settings import options

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings

_OF_DRIVER = frozenset(
    (
        "model",
        "cluster",
        "data_parallel_size",
        "prefill_replicas",
        "host",
        "port",
        "uds",
        "ssl_certfile",
        "ssl_keyfile",
        "ssl_ca_certs",
        "ssl_cert_reqs",
        "enable_ssl_refresh",
        "allowed_hosts",
        "page",
        "answer_timeout",
    )
)
# Where a replica runs, and which peers it knows.
_OF_PLACE = ("prefill_address", "kv_transfer_address", "prefill_workers", "worker_key_file")
# These describe one process on one machine.
_OF_WORKER = frozenset(("LOCAL_RANK", "RANK", "WORLD_SIZE", "HOSTNAME", "PWD", "TMPDIR"))
_DEVICES = ("_VISIBLE_DEVICES", "_AFFINITY_MASK")  # which Ray sets for each of its actors


def replica_settings(settings: Settings) -> dict[str, Settings]:
    """The driver's settings as adapted for the replicas of each role, keyed by role.

    Settings that only the other role reads are omitted.

    Raises:
        SettingsError: a setting cannot be used by replicas.
    """
    if not settings.prefill_replicas:
        roles = {"both": settings}
    else:
        for name in _OF_PLACE:
            if getattr(settings, name) != getattr(type(settings), name):
                raise SettingsError(f"{name}: --prefill-replicas chooses it; leave it out")
        if settings.pipeline_parallel_size > 1:
            raise SettingsError(
                "pipeline_parallel_size: a prefill or decode worker is on one machine; leave it "
                "out, or leave out --prefill-replicas"
            )
        roles = {role: _of_role(settings, role) for role in ("prefill", "decode")}
    for each in roles.values():
        check_role(_of_child(each))
    return roles


def _of_role(settings: Settings, role: str) -> Settings:
    unread = [name for name, readers in READERS.items() if readers and role not in readers]
    defaults = {name: getattr(type(settings), name) for name in unread}
    # Its file does not exist yet, so there is nothing to check.
    own = {"prefill_workers": f"@{os.devnull}"} if role == "decode" else {}
    return replace(settings, role=role, **{**defaults, **own})


def _of_child(settings: Settings) -> Settings:
    """The settings without those that concern only the driver."""
    own = {name: getattr(type(settings), name) for name in _OF_DRIVER - {"model"}}
    return replace(settings, **own)


def child_environment(settings: Settings, environ: Mapping[str, str], **own: Any) -> dict[str, str]:
    """The driver's environment without its per-process variables and settings; ``own``: the
    settings of this child."""
    copied = {
        name: value
        for name, value in environ.items()
        if name not in _OF_WORKER and not name.startswith("RAY_") and not name.endswith(_DEVICES)
    }
    for name in options():
        value = own.get(name, getattr(settings, name))
        copied.pop(environment_name(name), None)  # belongs to another process, or was read already
        if name in _OF_DRIVER and name not in own:
            continue
        if value != getattr(type(settings), name, None):
            copied[environment_name(name)] = _written(value)
    return copied


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(value)
    return plain_number(value) if isinstance(value, (int, float)) else str(value)
