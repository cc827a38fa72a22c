# SPDX-License-Identifier: Apache-2.0
"""The source of an answer's grammar, which is compiled in a process that may hang or crash."""

from __future__ import annotations

import contextlib
import json
import resource
from collections.abc import Iterator
from dataclasses import replace

import msgspec

from rtp_llm.request.constraints import Grammar
from rtp_llm.server.turn.body_kind import BodyKind
from rtp_llm.server.turn.prepared import PreparedBody
from rtp_llm.server.turn.served_model import ServedModel
from rtp_llm.server.types.errors import ApiError, bad_request
from rtp_llm.server.types.openai_bodies import StructuredOutputs
from rtp_llm.text.conversation import Tool, ToolChoice
from rtp_llm.text.grammar import GrammarError
from rtp_llm.text.grammar.check import rehearse
from rtp_llm.text.grammar.wanted import wanted_grammars
from rtp_llm.text.parsers.registry import call_or_answer, tool_grammar
from rtp_llm.text.tokenizer import Tokenizer

# Half the stack of the threads that fill the engine's masks: a grammar nested so deeply that it
# exhausts this stack crashes this process instead of the engine.
STACK_BYTES = 2**20


class GrammarSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The constraint as given by the request.

    `name`: the field to name in errors. `outputs`: the form of the answer, None: only calls;
    `strict`: refuse what cannot be enforced of its schema instead of ignoring it. `syntax`: the
    model's tool-call syntax, by name, if calls of `tools` are enforced.
    """

    name: str
    outputs: StructuredOutputs | None = None
    strict: bool = True
    syntax: str | None = None
    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = ToolChoice()

    @property
    def field(self) -> str:
        """The field to name if the grammar as a whole is invalid."""
        return self.name if self.syntax is None else "tools"

    def encode(self) -> bytes:
        """Encode as JSON, which allows integers of any length."""
        return json.dumps(msgspec.to_builtins(self)).encode()

    @staticmethod
    def decode(text: bytes) -> GrammarSource:
        """Decode the result of `encode`."""
        return msgspec.convert(json.loads(text), GrammarSource)


def encoded(source: GrammarSource | None) -> bytes:
    """The source as jobs carry it; empty without one."""
    return source.encode() if source is not None else b""


def prepare_grammar(body: bytes, model: ServedModel) -> PreparedBody:
    """Build the text of a source's grammar for the engine; compiles it and tries some tokens.

    Raises ApiError 400. It may take unlimited time and memory, and crash the process.
    """
    source = GrammarSource.decode(body)
    grammar, name = None, source.name
    try:
        if source.outputs is not None:
            _, make = next(wanted_grammars(source.outputs, strict=source.strict))
            grammar = make()
        name = source.field
        if source.syntax is not None:
            grammar = _of_calls(source, source.syntax, grammar, model.tokenizer)
        if grammar is None:
            raise GrammarError("there is nothing to enforce")
        with _stack_limited():
            rehearse(grammar, model.tokenizer)
    except GrammarError as error:
        raise grammar_error(name, error) from error
    return PreparedBody(grammar.text.encode())


GRAMMAR = BodyKind("grammar", prepare_grammar, renders=False, compiles=True)


def _of_calls(
    source: GrammarSource, syntax: str, answer: Grammar | None, tokenizer: Tokenizer
) -> Grammar | None:
    """The grammar of calls; unless a call is required, of calls or the answer."""
    special, choice = tokenizer.special_token_ids, source.choice
    if answer is not None:
        choice = replace(choice, mode="required")
    calls = tool_grammar(syntax, source.tools, choice, special)
    if answer is None or calls is None or source.choice.mode == "required":
        return calls
    return call_or_answer(syntax, calls, answer, special)


@contextlib.contextmanager
def _stack_limited() -> Iterator[None]:
    """Limit the main thread's stack to STACK_BYTES during the block."""
    before = resource.getrlimit(resource.RLIMIT_STACK)
    hard = before[1]
    size = STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, before)


def grammar_error(name: str, error: GrammarError) -> ApiError:
    """A 400 error that names the field and the keyword at fault."""
    said = str(error)
    word = error.keyword
    if word and word not in said and not name.endswith(word):
        said = f"{word}: {said}"
    return bad_request(f"{name}: {said.rstrip('.')}.", name, "invalid_grammar")
