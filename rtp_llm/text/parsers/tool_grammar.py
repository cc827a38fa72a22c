"""placeholder"""
from __future__ import annotations
from collections.abc import Sequence
from rtp_llm.constraints import Grammar
from rtp_llm.text.conversation import Tool, ToolChoice
def tool_grammar(form: str, tools: Sequence[Tool], choice: ToolChoice) -> Grammar | None:
    return None
