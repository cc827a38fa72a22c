"""Which forms a model writes, by its chat template and its vocabulary."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass


@dataclass(frozen=True)
class Detected:
    """Names of forms, None where none was found; ``why``: for people, what they were told by."""

    tool_calls: str | None
    reasoning: str | None
    why: str


@dataclass(frozen=True)
class _Rule:
    """``all_of``: texts that the template has, ``none_of``: has not; ``tokens``: of the vocabulary.

    The template's texts or the tokens suffice where both are given.
    """

    form: str
    all_of: tuple[str, ...]
    none_of: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()

    def why(self, template: str, vocabulary: Container[str]) -> str | None:
        """What told, None: nothing."""
        in_template = all(text in template for text in self.all_of)
        if in_template and not any(text in template for text in self.none_of):
            return "the template has " + " and ".join(map(repr, self.all_of))
        if self.tokens and all(token in vocabulary for token in self.tokens):
            return "the vocabulary has " + " and ".join(map(repr, self.tokens))
        return None


# The first that fits decides, so the specific ones come first.
_TOOL_CALLS = (
    _Rule("hermes", ("<tool_call>", "arguments"), ("<arg_key>", "<function=", "<minimax:")),
)
_REASONING = (
    _Rule("qwen3", ("<think>", "enable_thinking")),
    _Rule("deepseek_r1", ("<think>",)),
    _Rule("deepseek_r1", ("</think>",)),
)


def detect(template: str, vocabulary: Container[str]) -> Detected:
    """The forms of a model with this chat template ("" without one) and these tokens."""
    calls, calls_why = _first(_TOOL_CALLS, template, vocabulary)
    reasoning, reasoning_why = _first(_REASONING, template, vocabulary)
    why = f"tool calls: {calls_why}; reasoning: {reasoning_why}"
    return Detected(calls, reasoning, why)


def _first(
    rules: tuple[_Rule, ...], template: str, vocabulary: Container[str]
) -> tuple[str | None, str]:
    for rule in rules:
        if (why := rule.why(template, vocabulary)) is not None:
            return rule.form, f"{rule.form} ({why})"
    return None, "none (no known marks)"
