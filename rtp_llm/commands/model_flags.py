# SPDX-License-Identifier: Apache-2.0
"""Flags of `rtp-llm serve` for commands that load a model themselves."""

from __future__ import annotations

import argparse

from rtp_llm.chat.server_child import INHERITED
from rtp_llm.config.command_line import build_parser
from rtp_llm.config.settings import options

_GROUPS = ("model", "device", "cache", "scheduling", "speculation", "ranks")
# Here these are flags of a request, or concern other machines or several servers.
_OWN = ("model", "seed", "served_model_name")
_CLUSTER = ("nnodes", "node_rank", "master_addr", "master_port", "cluster", "prefill_replicas")


def model_parser(prog: str, about: str, *, serves: bool) -> argparse.ArgumentParser:
    """A parser with the flags of settings that affect loading a model; more can be added.

    ``serves``: the model is loaded by a server.
    """
    taken = {
        name
        for name, info in options().items()
        if info.group in _GROUPS and name not in (*_OWN, *_CLUSTER)
    }
    taken.update(INHERITED if serves else ("log_level",))
    made = build_parser(prog, about, reads=(), omits=options().keys() - taken)
    made.epilog = (
        "Settings of `rtp-llm serve` for the model and its device are flags here, too: --dtype, "
        "--max-seq-len, --num-threads, ... (docs/settings.md)."
    )
    return made
