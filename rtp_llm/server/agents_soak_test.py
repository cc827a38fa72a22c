# SPDX-License-Identifier: Apache-2.0
"""Codex and Claude Code do a turn with a tool call, without a network, against a real server.

Template, parsers, streams and the engine's process are real; what the model says is a script, as
the demo model's context is too short for their prompts. `./dev soak` installs the agents.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rtp_llm.testing.server.agent_turn import ANSWER, WORD
from rtp_llm.testing.server_processes import run_without_network

PATHS = {"codex": "/v1/responses", "claude": "/v1/messages"}


def turn(name: str, folder: Path) -> dict[str, Any]:
    """What the agent and the server said."""
    modules = os.environ.get("AGENTS_MODULES", "")
    assert modules, "AGENTS_MODULES: the node_modules of tools/agents, which ./dev soak installs"
    driver = "rtp_llm.testing.server.agent_turn"
    said = run_without_network(driver, name, modules, str(folder))
    assert f"answers come from the script {folder}" in said["server"]
    return said


def test_codex(tmp_path: Path) -> None:
    said = turn("codex", tmp_path)
    events = [json.loads(line) for line in said["stdout"].splitlines()]
    items = [e["item"] for e in events if e["type"] == "item.completed"]
    (command,) = [item for item in items if item["type"] == "command_execution"]
    assert "cat note.txt" in command["command"]
    assert (command["aggregated_output"], command["exit_code"]) == (f"{WORD}\n", 0)
    assert [i["text"] for i in items if i["type"] == "agent_message"] == [ANSWER]
    assert events[-1]["type"] == "turn.completed"
    assert said["server"].count("path=/v1/responses status=200") == 2


def test_claude_code(tmp_path: Path) -> None:
    said = turn("claude", tmp_path)
    events = [json.loads(line) for line in said["stdout"].splitlines()]
    last = events[-1]
    assert (last["type"], last["is_error"], last["result"]) == ("result", False, ANSWER)
    blocks = [b for e in events if e["type"] == "user" for b in e["message"]["content"]]
    (result,) = [block for block in blocks if block["type"] == "tool_result"]
    assert (result["content"], result["is_error"]) == (WORD, False)
    assert said["server"].count("path=/v1/messages status=200") == 2
