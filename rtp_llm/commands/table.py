# SPDX-License-Identifier: Apache-2.0
"""The commands, each a module of this folder: usage and description."""

from __future__ import annotations

COMMANDS = {
    "serve": ("serve MODEL [flags]", "serve a model folder over the OpenAI protocol"),
    "chat": ("chat [FOLDER|URL]", "talk to a model in the terminal"),
    "run": ('run FOLDER|URL "PROMPT"', "answer one prompt, streamed to standard output"),
    "bench": (
        "bench serve|latency|throughput",
        "measure any server with OpenAI's API, or the engine by itself",
    ),
    "route": ("route [flags]", "one address before several servers (--workers)"),
    "key": ("key NAME", "print a new API key, and its entry for --api-key-file"),
    "explain": (
        "explain MODEL [flags]",
        "say how the model would run here: device, number type, attention, refusals",
    ),
    "completion": ("completion SHELL", "print the completion of this command for bash or zsh"),
}
