# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters as command-line flags and by name; the server checks their ranges."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any


def _switch(text: str) -> bool:
    values = {"on": True, "true": True, "off": False, "false": False}
    if text.lower() not in values:
        raise ValueError(text)
    return values[text.lower()]


# Name in the request -> type and description.
PARAMETERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "max_tokens": (int, "Longest answer in tokens."),
    "temperature": (float, "0 takes the most likely token."),
    "top_p": (float, "The most likely tokens that together have this probability."),
    "top_k": (int, "The k most likely tokens."),
    "min_p": (float, "Tokens with this share of the most likely one's probability."),
    "presence_penalty": (float, "Subtracted from the logits of tokens that were generated."),
    "frequency_penalty": (float, "The same, times how often they were generated."),
    "repetition_penalty": (float, "Divides the logits of tokens in the prompt or the answer."),
    "seed": (int, "The same seed and prompt give the same answer."),
    "stop": (str, "Text that ends the answer."),
    "ignore_eos": (_switch, "Go on after the end-of-sequence token."),
}


class UnknownParameter(ValueError):
    """There is no parameter of that name, or the value does not have its type."""


def parse_parameter(name: str, text: str) -> Any:
    """Parse ``text`` as the value of a parameter; raises UnknownParameter."""
    if name not in PARAMETERS:
        raise UnknownParameter(f"{name}: no such parameter; there are {', '.join(PARAMETERS)}")
    parse, _ = PARAMETERS[name]
    try:
        return parse(text)
    except ValueError:
        noun = {int: "a whole number", float: "a number"}.get(parse, "on or off")  # type: ignore[call-overload]
        raise UnknownParameter(f"{name}: {text!r} is not {noun}") from None


def add_sampling_flags(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add flags for all parameters, or for those named."""
    group = parser.add_argument_group("sampling", "Where none is given the server's default holds.")
    for name in names or PARAMETERS:
        parse, about = PARAMETERS[name]
        flag = "--" + name.replace("_", "-")
        if parse is _switch:
            group.add_argument(flag, action="store_const", const=True, help=about)
        elif name == "stop":
            text = f"{about} May be given several times."
            group.add_argument(flag, action="append", metavar="TEXT", help=text)
        else:
            group.add_argument(flag, type=parse, metavar="NUMBER", help=about)


def sampling_of(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the given parameters (only ``names``, if any) as fields of a request."""
    found = ((name, getattr(arguments, name)) for name in names or PARAMETERS)
    return {name: value for name, value in found if value is not None}
