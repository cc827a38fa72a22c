# SPDX-License-Identifier: Apache-2.0
"""Questions and answers in turn, until the end of the input."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

from rtp_llm.chat.conversation import CommandProblem, Conversation, run_command
from rtp_llm.chat.printing import Answer, AnswerPrinter, print_answer
from rtp_llm.chat.questions import Questions
from rtp_llm.chat.target import Target
from rtp_llm.client.openai import CHAT, ServerError


def converse(target: Target, conversation: Conversation) -> int:
    """Run the conversation; returns the exit code: 1 if a piped question failed, else 0."""
    questions = Questions()
    failed = False
    if questions.on_terminal:
        print(f"{target.model} at {target.base}. /help lists the commands, Ctrl-D ends.")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        while (line := _next(questions)) is not None:
            if line:
                done = _handle(line, target, conversation)
                if done is None:
                    break
                failed = failed or not done
    finally:
        signal.signal(signal.SIGINT, before)
        questions.close()
    return int(failed and not questions.on_terminal)


def _next(questions: Questions) -> str | None:
    """The next input; empty after Ctrl-C, None at the end."""
    try:
        return questions.next()
    except KeyboardInterrupt:
        print("\nCtrl-D or /exit ends the conversation.")
        return ""
    except EOFError:
        if questions.on_terminal:
            print()
        return None


def _handle(line: str, target: Target, conversation: Conversation) -> bool | None:
    """Handle a line; returns whether it succeeded, None to end the conversation."""
    if line.startswith("/"):
        try:
            outcome = run_command(line, conversation)
        except CommandProblem as problem:
            print(problem, file=sys.stderr)
            return False
        if outcome.says:
            print(outcome.says)
        if not outcome.asks:
            return None if outcome.ends else True
    else:
        conversation.ask(line)
    return answer_question(target, conversation)


def answer_question(target: Target, conversation: Conversation) -> bool:
    """Print and keep the answer to the last question. Ctrl-C keeps the part that arrived.

    Returns False after an error, which is printed; the question is dropped if nothing arrived.
    """
    answer, problem = Answer(), ""
    body: dict[str, Any] = {"model": target.model, "messages": conversation.messages()}
    printer = AnswerPrinter(sys.stdout, sys.stdout)
    try:
        asyncio.run(
            print_answer(target.client(), CHAT, body | conversation.sampling, printer, answer)
        )
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        raise
    except (ServerError, OSError) as error:
        problem = str(error)
    conversation.take(answer.text)
    if problem:
        print(f"error: {problem}", file=sys.stderr)
    elif answer.finish_reason == "length":
        print("(The answer ended at its longest length.)", file=sys.stderr)
    return not problem
