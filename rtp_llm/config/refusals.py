"""The table of what is refused, with the reason and what to change.

Rows of area "request" are fields or values of an HTTP request (answered with 400); other areas are
refused at start-up by the code that reads the model or the settings. The page is written by
`python -m rtp_llm.config.refusals > docs/refusals.md`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """One thing that is refused: `name` in `area` on `devices`, why, and what to change."""

    area: str
    name: str
    reason: str
    change: str
    devices: str = "all"

    @property
    def message(self) -> str:
        """What the user is told."""
        return f"{self.name} is not supported: {self.reason} {self.change}"


_TOOLS = "There is no tool-call parser yet."
_LEAVE_OUT = "Leave the field out."
_GRAMMAR = "Output cannot be constrained to a grammar yet."

REFUSALS: tuple[Refusal, ...] = (
    Refusal("request", "tools", _TOOLS, _LEAVE_OUT),
    Refusal("request", "tool_choice", _TOOLS, 'Leave the field out or send "none".'),
    Refusal("request", "functions", _TOOLS, _LEAVE_OUT),
    Refusal("request", "function_call", _TOOLS, 'Leave the field out or send "none".'),
    Refusal("request", "messages.tool_calls", _TOOLS, "Leave tool calls out of the conversation."),
    Refusal("request", "messages.tool", _TOOLS, "Leave messages of role tool or function out."),
    Refusal("request", "response_format", _GRAMMAR, 'Send {"type": "text"} or leave it out.'),
    Refusal("request", "structured_outputs", _GRAMMAR, _LEAVE_OUT),
    Refusal("request", "guided_json", _GRAMMAR, _LEAVE_OUT),
    Refusal("request", "guided_regex", _GRAMMAR, _LEAVE_OUT),
    Refusal("request", "guided_choice", _GRAMMAR, _LEAVE_OUT),
    Refusal("request", "guided_grammar", _GRAMMAR, _LEAVE_OUT),
    Refusal("request", "grammar", _GRAMMAR, _LEAVE_OUT),
    Refusal("request", "json_schema", _GRAMMAR, _LEAVE_OUT),
    Refusal(
        "request",
        "messages.content",
        "Only text parts are understood; images, audio, video and files are not.",
        "Send parts of type text.",
    ),
    Refusal("request", "modalities", "Only text is produced.", 'Send ["text"] or leave it out.'),
    Refusal("request", "audio", "Only text is produced.", _LEAVE_OUT),
    Refusal("request", "prediction", "Predicted output is not used.", _LEAVE_OUT),
    Refusal("request", "web_search_options", "The server does not search the web.", _LEAVE_OUT),
    Refusal(
        "request",
        "reasoning_effort",
        "There is no common meaning for local models.",
        "Send what the chat template understands in chat_template_kwargs.",
    ),
    Refusal("request", "thinking_budget", "Thinking cannot be limited yet.", _LEAVE_OUT),
    Refusal(
        "request",
        "verbosity",
        "Local models have no such control.",
        "Leave the field out and say it in the prompt.",
    ),
    Refusal("request", "suffix", "Models are not asked to fill in the middle.", _LEAVE_OUT),
    Refusal(
        "request",
        "best_of",
        "Candidates are not ranked by the server.",
        "Leave it out, or send the same value as n.",
    ),
    Refusal("request", "use_beam_search", "There is no beam search yet.", _LEAVE_OUT),
    Refusal("request", "beam_width", "There is no beam search yet.", _LEAVE_OUT),
    Refusal("request", "length_penalty", "There is no beam search yet.", _LEAVE_OUT),
    Refusal("request", "typical_p", "This way of sampling is not implemented.", _LEAVE_OUT),
    Refusal("request", "mirostat", "This way of sampling is not implemented.", _LEAVE_OUT),
    Refusal(
        "request",
        "continue_final_message",
        "The last message always starts a new answer.",
        "Use /v1/completions to continue a text.",
    ),
    Refusal(
        "request",
        "prompt_logprobs",
        "It has no place in the OpenAI protocol.",
        "Use /v1/completions with echo and logprobs.",
    ),
)


def find_refusal(area: str, name: str) -> Refusal | None:
    """The row of `name` in `area`, if there is one."""
    return _INDEX.get((area, name))


_INDEX = {(refusal.area, refusal.name): refusal for refusal in REFUSALS}

_INTRODUCTION = """# What is refused

<!-- Written by `python -m rtp_llm.config.refusals`; do not edit. -->

Nothing that would change the result is ignored silently. What is not supported is refused with its
reason: a field of a request with 400, a model or a setting at start-up.

| where | what | devices | reason | what to do |
|---|---|---|---|---|
"""


def render() -> str:
    """The page docs/refusals.md."""
    cells = ((r.area, f"`{r.name}`", r.devices, r.reason, r.change) for r in REFUSALS)
    return _INTRODUCTION + "".join(f"| {' | '.join(row)} |\n" for row in cells)


if __name__ == "__main__":
    sys.stdout.write(render())
