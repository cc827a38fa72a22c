# SPDX-License-Identifier: Apache-2.0
"""What must be the same on all nodes: settings, model, protocol."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rtp_llm.config.settings import options
from rtp_llm.gguf import is_gguf, language_model
from rtp_llm.model_folder import config_file
from rtp_llm.worker.ranks.frames import PROTOCOL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rtp_llm.config.settings import Settings

# Ranks read none of the server's settings but these, which say how long they wait for each other.
_OF_SERVER = frozenset(("start_timeout", "step_timeout", "restart_engine"))
# A file lies where each machine has it; of models the content is compared.
_OF_MACHINE = frozenset(("node_rank", "model", "speculative_model", "chat_template"))
_OF_MACHINE_TOO = frozenset(("worker_key_file", "served_model_name"))


def shared_settings(settings: Settings) -> dict[str, Any]:
    """What to compare, by the name that a user knows it by."""
    shared: dict[str, Any] = {"protocol of nodes": PROTOCOL}
    for name, option in options().items():
        of_server = option.group == "server" and name not in _OF_SERVER
        if not of_server and name not in _OF_MACHINE | _OF_MACHINE_TOO:
            shared[name] = getattr(settings, name)
    for name in ("model", "speculative_model"):
        folder = getattr(settings, name)
        shared[f"content of {name}"] = folder_digest(Path(folder)) if folder else ""
    return shared


def folder_digest(folder: Path) -> str:
    """Of the model's config.json, and of the names and sizes of its weights or GGUF files."""
    config = config_file(folder)
    digest = hashlib.sha256(config.read_bytes() if config.exists() else b"")
    files = language_model(folder).files if is_gguf(folder) else folder.glob("*.safetensors")
    for path in sorted(files):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
    return digest.hexdigest()[:16]


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Each that differs, as "NAME: OURS on node 0, THEIRS on this one"."""
    return [
        f"{name}: {ours.get(name)} on node 0, {theirs.get(name)} on this one"
        for name in sorted({*ours, *theirs})
        if ours.get(name) != theirs.get(name)
    ]
