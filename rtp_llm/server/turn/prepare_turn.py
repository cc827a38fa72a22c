# SPDX-License-Identifier: Apache-2.0
"""Turns a chat turn into an engine job: render, tokenise, choose the answer's parser."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from rtp_llm.request.constraints import Thinking
from rtp_llm.server.turn.chat_turn import ChatPrompt, ChatTurn
from rtp_llm.server.turn.grammar_source import GrammarSource, encoded, grammar_error
from rtp_llm.server.turn.parse import refused
from rtp_llm.server.turn.prompts import check_size, encode_prompt, make_job
from rtp_llm.server.turn.render import Rendered, render
from rtp_llm.server.turn.sampling import bad_words, sampling_params
from rtp_llm.server.turn.served_model import ServedModel
from rtp_llm.server.types.errors import ApiError, bad_request
from rtp_llm.server.types.jobs import Job
from rtp_llm.text.conversation import Tool, ToolChoice
from rtp_llm.text.grammar import GrammarError
from rtp_llm.text.parsers.registry import enforces_calls, reasoning_is_open
from rtp_llm.text.parsers.spec import ParserSpec
from rtp_llm.text.thinking import thinking_of


def prepare_turn(turn: ChatTurn, model: ServedModel) -> Job:
    """The job of a turn; its `parser` parses the answer.

    Raises ApiError, and NotInline if it may take long.
    """
    request, options = turn.sampling, turn.options
    check_size(1, request, model)
    tools = shown_tools(turn.prompt, turn.tool_choice, model)
    turn = replace(turn, prompt=replace(turn.prompt, tools=tools))
    rendered = render(turn.prompt, model)
    add = bool(request.add_special_tokens)
    ids, _ = encode_prompt(rendered.text, request, model, turn.lengths, add)
    if not ids:
        name = turn.lengths.prompt_name
        raise bad_request(f"The {name} render to an empty prompt.", param=name)
    params = sampling_params(
        request,
        model.defaults,
        model.limits,
        max_tokens=turn.lengths.resolve(len(ids), model.limits),
        logprobs=options.top_logprobs,
        prompt_logprobs=options.prompt_logprobs,
        bad_words=bad_words(request, model.tokenizer),
    )
    parser = _parser(turn, rendered, model)
    grammar = _grammar(turn, parser)
    return make_job(
        request,
        model.limits,
        ids,
        params,
        continues_prompt=turn.prompt.continue_final_message,
        grammar_source=encoded(grammar),
        thinking=_thinking(turn, rendered, parser, grammar, model),
        parser=parser,
        single_call=not turn.tool_choice.parallel,
        beam_search=turn.beam_search,
    )


def shown_tools(prompt: ChatPrompt, choice: ToolChoice, model: ServedModel) -> tuple[Tool, ...]:
    """The tools to show to the model; raises ApiError 400 if it could not call them."""
    tools = prompt.tools
    if not tools and choice.mode == "required":
        raise _unusable("tool_choice", "no tools are declared.")
    names = {tool.name for tool in tools}
    unknown = [name for name in choice.names or () if name not in names]
    if unknown:
        raise _unusable("tool_choice", f"no tool is called {unknown[0]!r}.")
    if not tools or choice.mode == "none":
        return ()
    if model.tool_call_parser is None:
        raise refused("tools", "tools")
    check_tools(prompt, model)
    if choice.mode == "auto" and choice.names is not None:
        return tuple(tool for tool in tools if tool.name in choice.names)
    return tools


def check_tools(prompt: ChatPrompt, model: ServedModel) -> None:
    """Raise ApiError 400 for tools that the template leaves out of the prompt."""
    if prompt.tools and "tools" not in model.tokenizer.template_variables(prompt.chat_template):
        raise _unusable(
            "tools",
            "the chat template does not show them to the model; give one that does "
            "(--chat-template).",
        )


def _parser(turn: ChatTurn, rendered: Rendered, model: ServedModel) -> ParserSpec:
    reasoning, tools = model.reasoning_parser, turn.prompt.tools
    return ParserSpec(
        tool_calls=model.tool_call_parser if tools else None,
        reasoning=reasoning,
        reasoning_open=reasoning is not None and reasoning_is_open(rendered.text, reasoning),
        tools=tools,
        only_tools=turn.tool_choice.names is not None,
    )


def _grammar(turn: ChatTurn, parser: ParserSpec) -> GrammarSource | None:
    """The grammar of the response format, of calls, or of either."""
    if parser.tool_calls is None:
        return turn.grammar
    try:
        if turn.grammar is None and not enforces_calls(parser.tools, turn.tool_choice):
            return None
    except GrammarError as error:
        raise grammar_error("tools", error) from error
    return msgspec.structs.replace(
        turn.grammar or GrammarSource(name="tools"),
        syntax=parser.tool_calls,
        tools=parser.tools,
        choice=turn.tool_choice,
    )


def _thinking(
    turn: ChatTurn,
    rendered: Rendered,
    parser: ParserSpec,
    grammar: GrammarSource | None,
    model: ServedModel,
) -> Thinking | None:
    """The engine's reasoning parameters: where the grammar starts, and the budget."""
    reasoning_options = turn.prompt.reasoning
    budget = reasoning_options.budget
    if parser.reasoning is None:
        if budget is not None and not reasoning_options.optional:
            raise refused("thinking_budget", "thinking_budget")
        return None
    off = rendered.thinking is False
    if rendered.thinking is None:
        off = reasoning_options.enabled is False or (
            reasoning_options.enabled is None and reasoning_options.effort == "none"
        )
    if off and parser.reasoning_open:
        budget = 0  # the template has no variable for it
    if (grammar is None and budget is None) or (off and not parser.reasoning_open):
        return None
    return thinking_of(
        parser.reasoning,
        parser.reasoning_open,
        model.tokenizer,
        budget,
        before_calls=parser.tool_calls is not None,
    )


def _unusable(name: str, reason: str) -> ApiError:
    return bad_request(f"{name}: {reason}", name, "invalid_value")
