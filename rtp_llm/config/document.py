# SPDX-License-Identifier: Apache-2.0
"""Write docs/settings.md from the table: `python -m rtp_llm.config.document > docs/settings.md`."""

from __future__ import annotations

import sys

from rtp_llm.config.command_line import environment_name
from rtp_llm.config.options import Option, flag_name
from rtp_llm.config.roles import OF_ROUTER
from rtp_llm.config.settings import Settings, options

INTRODUCTION = """# Settings

<!-- Written by `python -m rtp_llm.config.document`; do not edit. -->

Every setting has a flag, an environment variable and a key in the TOML file of `--config FILE`
(the field's name). Flags win over the environment, the environment over the file, the file over
the default. Underscores in flags are accepted. Booleans take on/off, true/false, 1/0. A bad value
stops the start and names the setting. The effective settings are printed once at start, secrets
masked. In Python, `Settings(field=value)` takes the same names.

A setting that a server's role does not read stops the start, too. So does one that `rtp-llm route`
does not read; it reads {of_router}.
"""


def render() -> str:
    """Render docs/settings.md as Markdown text."""
    parts = [INTRODUCTION.format(of_router=", ".join(map(flag_name, OF_ROUTER)))]
    group = ""
    for name, info in options().items():
        if info.group != group:
            group = info.group
            parts.append(f"\n## {group}\n")
            parts.append("| flag | environment | values | default | meaning |")
            parts.append("|---|---|---|---|---|")
        parts.append(_row(name, info))
    return "\n".join(parts) + "\n"


def _row(name: str, info: Option) -> str:
    flag = "`MODEL`" if info.positional else f"`{flag_name(name)}`"
    default = f"auto: {info.automatic}" if info.automatic else info.show(getattr(Settings, name))
    cells = (flag, f"`{environment_name(name)}`", info.describe_values(), default or "none")
    return f"| {' | '.join(cells)} | {info.help} |"


if __name__ == "__main__":
    sys.stdout.write(render())
