# SPDX-License-Identifier: Apache-2.0
"""A conversation: its messages and sampling parameters, and the commands that change them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rtp_llm.client.sampling import PARAMETERS, UnknownParameter, parse_parameter

Message = dict[str, str]

HELP = """\
/system TEXT       begin again with this system prompt; without TEXT: with none
/clear             forget the conversation
/retry             answer the last question again
/set NAME VALUE    sampling of the next answers: {names}
/set NAME          back to the server's default
/set               what is set
/help              this list
/exit              end; so does Ctrl-D
\"\"\"                begins a text of several lines, and ends it
Ctrl-C stops an answer; a line that ends in a backslash goes on in the next.
""".format(names=", ".join(PARAMETERS))


class CommandProblem(ValueError):
    """A command failed; the message says why."""


@dataclass
class Conversation:
    """The messages and sampling parameters that are sent with each question."""

    system: str | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    turns: list[Message] = field(default_factory=list)
    unanswered: Message | None = None
    """A question without an answer; only /retry asks it again."""

    def messages(self) -> list[Message]:
        """The messages of a request: the system prompt, if any, and the turns so far."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.turns]

    def ask(self, text: str) -> None:
        """Add a question to the conversation."""
        self.unanswered = None
        self.turns.append({"role": "user", "content": text})

    def take(self, text: str) -> None:
        """Add the answer; if it has no text, drop its question as well."""
        if text:
            self.turns.append({"role": "assistant", "content": text})
        else:
            self.unanswered = self.turns.pop()

    def clear(self) -> None:
        """Forget everything except the system prompt."""
        self.turns.clear()
        self.unanswered = None


@dataclass(frozen=True)
class Outcome:
    """The outcome of a command: what to print, and what to do next."""

    says: str = ""
    asks: bool = False
    """Whether the conversation now ends with an unanswered question."""
    ends: bool = False


def run_command(line: str, conversation: Conversation) -> Outcome:
    """Run a command line such as `/set temperature 0`; raises CommandProblem."""
    name, _, rest = line.partition(" ")
    command = _COMMANDS.get(name)
    if command is None:
        raise CommandProblem(f"no command {name}; /help lists them")
    return command(conversation, rest.strip())


def _clear(conversation: Conversation, _rest: str) -> Outcome:
    conversation.clear()
    return Outcome("The conversation is forgotten.")


def _system(conversation: Conversation, rest: str) -> Outcome:
    conversation.clear()
    conversation.system = rest or None
    return Outcome("A new conversation begins with it." if rest else "No system prompt.")


def _retry(conversation: Conversation, _rest: str) -> Outcome:
    if conversation.unanswered is not None:
        conversation.turns.append(conversation.unanswered)
    elif conversation.turns:
        conversation.turns.pop()  # the answer
    else:
        raise CommandProblem("there is no question yet")
    return Outcome(asks=True)


def _set(conversation: Conversation, rest: str) -> Outcome:
    name, _, text = rest.partition(" ")
    name = name.replace("-", "_")
    try:
        if text:
            conversation.sampling[name] = parse_parameter(name, text.strip())
        elif name in PARAMETERS:
            conversation.sampling.pop(name, None)
        elif name:
            parse_parameter(name, text)
    except UnknownParameter as error:
        raise CommandProblem(str(error)) from error
    listed = (f"{key} = {value}" for key, value in conversation.sampling.items())
    return Outcome(", ".join(listed) or "Sampling is the server's.")


_COMMANDS: dict[str, Callable[[Conversation, str], Outcome]] = {
    "/help": lambda _conversation, _rest: Outcome(HELP.rstrip()),
    "/?": lambda _conversation, _rest: Outcome(HELP.rstrip()),
    "/clear": _clear,
    "/system": _system,
    "/retry": _retry,
    "/set": _set,
    "/exit": lambda _conversation, _rest: Outcome(ends=True),
    "/bye": lambda _conversation, _rest: Outcome(ends=True),
}
