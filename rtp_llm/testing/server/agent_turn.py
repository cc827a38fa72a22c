# SPDX-License-Identifier: Apache-2.0
"""A turn of a coding agent with a server, alone on a machine without a network.

`unshare --map-root-user --net python -m ... NAME MODULES FOLDER`: agent NAME of the npm packages
in MODULES works in FOLDER. Prints what it and the server said, as JSON. The model is a scripted
engine: it asks for a file by a tool call, and tells what the file says once it was read.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from rtp_llm.testing.server.agent_clients import template_file
from rtp_llm.testing.server_processes import TIMEOUT, process

QUESTION = "Which word does note.txt say?"
WORD, ANSWER = "heliotrope", "The word is heliotrope."
THOUGHT = "I read the note."
# The tool by which each agent runs a command, and the name of its argument.
TOOLS = {"codex": ("exec_command", "cmd"), "claude": ("Bash", "command")}
_CODEX = """
model = "demo"
model_provider = "rtp-llm"
[model_providers.rtp-llm]
name = "rtp-llm"
base_url = "{url}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""


def codex(modules: Path, home: Path, url: str) -> list[str]:
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text(_CODEX.format(url=url))
    flags = ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return [str(modules / ".bin" / "codex"), "exec", *flags, QUESTION]


def claude(modules: Path, home: Path, url: str) -> list[str]:
    (program,) = modules.glob("@anthropic-ai/claude-code-*/claude")
    flags = ["--model", "demo", "--allowedTools", "Bash", "--output-format", "stream-json"]
    return [str(program), "-p", QUESTION, "--verbose", *flags]


AGENTS: dict[str, Callable[[Path, Path, str], list[str]]] = {"codex": codex, "claude": claude}


def script_of(name: str) -> list[tuple[list[str], str]]:
    """What the engine says to which prompts; the answer only where all of the turn is in them."""
    tool, argument = TOOLS[name]
    call = json.dumps({"name": tool, "arguments": {argument: "cat note.txt"}})
    begun = f'<tool_call>\n{{"name": "{tool}"'
    return [
        ([WORD, THOUGHT, begun, "<tool_response>"], f"<think>\nThere.\n</think>\n\n{ANSWER}"),
        ([WORD], "Some of this turn is missing in the prompt."),
        ([], f"<think>\n{THOUGHT}\n</think>\n\n<tool_call>\n{call}\n</tool_call>"),
    ]


def open_loopback() -> None:
    """The only interface that there is."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        up = struct.pack("16sH14x", b"lo", 1)  # IFF_UP
        fcntl.ioctl(sock, 0x8914, up)  # SIOCSIFFLAGS


def main(name: str, modules: Path, folder: Path) -> None:
    open_loopback()
    home, work, script = folder / "home", folder / "work", folder / "answers.json"
    home.mkdir()
    work.mkdir()
    (work / "note.txt").write_text(f"{WORD}\n")
    script.write_text(json.dumps(script_of(name)))
    environ = {"FAKE_ENGINE": "answering", "ANSWERS": str(script)}
    with process("--chat-template", str(template_file()), **environ) as server:
        url = server.url
        done = subprocess.run(
            AGENTS[name](modules, home, url),
            cwd=work,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(home),
                "ANTHROPIC_BASE_URL": url,
                "ANTHROPIC_API_KEY": "none",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        said = {"code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
        print(json.dumps(said | {"server": "".join(server.lines["stderr"])}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
