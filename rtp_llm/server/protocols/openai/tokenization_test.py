# SPDX-License-Identifier: Apache-2.0
"""/tokenize renders what a chat would."""

from __future__ import annotations

from pathlib import Path

from rtp_llm.testing.model_folders import byte_level, write_folder
from rtp_llm.testing.server.serving import run, served
from rtp_llm.text.tokenizer import Tokenizer

HELLO = {"role": "user", "content": "Hello"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def with_template(template: str, folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(write_folder(folder, byte_level(), template=template))


@run
async def test_tools_that_the_template_leaves_out_are_refused(tmp_path: Path) -> None:
    asked = {"messages": [HELLO], "tools": [TOOL]}
    shows = with_template("{{ tools | length }}{{ messages[0].content }}", tmp_path / "shows")
    async with served(tokenizer=shows) as server:
        answer = await server.post("/tokenize", **asked)
        assert shows.decode(answer.json()["tokens"], False) == "1Hello"
    async with served(tokenizer=with_template("{{ messages[0].content }}", tmp_path)) as server:
        assert (await server.post("/tokenize", messages=[HELLO])).status_code == 200
        answer = await server.post("/tokenize", **asked)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "tools"
        assert "does not show them" in answer.json()["error"]["message"]
