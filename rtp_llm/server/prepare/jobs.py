# SPDX-License-Identifier: Apache-2.0
"""What a request's preparation hands on: prompts to generate from, and how answers are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rtp_llm.constraints import Grammar, Thinking
from rtp_llm.sampling_params import SamplingParams
from rtp_llm.text.parsers.spec import ParserSpec


@dataclass(frozen=True)
class Job:
    """One prompt and what is wanted of it.

    `hidden`: ids that show no text; `stop_regex`: patterns whose match in its text ends an answer;
    `grammar_source`: what `grammar` is to be made of, see GrammarSource, until it is;
    `first_choice`: number of its first choice; `prompt_only`: the
    answer is not shown or counted; `parser`: how the answer is read; `single_call`: the answer ends
    with its first tool call.
    """

    prompt_ids: list[int]
    params: SamplingParams
    hidden: frozenset[int] = frozenset()
    first_choice: int = 0
    skip_special_tokens: bool = True
    include_stop: bool = False
    stop_regex: tuple[str, ...] = ()
    continues_prompt: bool = False
    prompt_only: bool = False
    cache_salt: str = ""
    grammar: Grammar | None = None
    grammar_source: bytes = b""
    thinking: Thinking | None = None
    parser: ParserSpec = field(default_factory=ParserSpec)
    single_call: bool = False


@dataclass(frozen=True)
class AnswerOptions:
    """What an answer shows beside its text.

    `continuous_usage`: in every chunk; `token_ids`: those of prompts and answers;
    `tokens_as_ids`: log-probabilities name tokens "token_id:N"; `top_logprobs` and
    `prompt_logprobs`: how many of the most likely tokens, None: no log-probabilities;
    `named_logprobs`: those of tokens that the request names, and of the sampled one;
    `vllm_fields`: whole answers have vLLM's fields that were not asked for as null.
    """

    include_usage: bool = False
    continuous_usage: bool = False
    token_ids: bool = False
    tokens_as_ids: bool = False
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    named_logprobs: bool = False
    vllm_fields: bool = False

    @property
    def logprobs(self) -> bool:
        """Whether those of the answer are shown."""
        return self.top_logprobs is not None


@dataclass(frozen=True)
class ChatForm:
    """How the choices of a chat are shown.

    `echoes`: texts of last messages, before the choices; one is before each of them. `batch`: each
    choice is the answer of another conversation. `reasoning_fields`: those of a message that have
    the thinking, none: it is not shown; `functions`: calls are shown in the old form, as
    `function_call`.
    """

    model: str
    num_choices: int
    options: AnswerOptions
    echoes: tuple[str, ...] = ()
    reasoning_fields: tuple[str, ...] = ()
    functions: bool = False
    batch: bool = False

    def echo_of(self, choice: int) -> str:
        """The text that comes before a choice's own."""
        if not self.echoes:
            return ""
        return self.echoes[choice if self.batch else 0]


@dataclass(frozen=True)
class Echo:
    """The prompt as it is given back: its text, its ids, and where each id's text begins."""

    text: str
    token_ids: Sequence[int]
    offsets: Sequence[int]


@dataclass(frozen=True)
class CompletionForm:
    """How the choices of a request are shown. `echoes`: one per prompt, or None.

    `drop_answer`: only the prompt was asked for (max_tokens 0), what was generated is not shown.
    """

    model: str
    choices_per_prompt: int
    num_choices: int
    options: AnswerOptions
    echoes: Sequence[Echo] | None = None
    drop_answer: bool = False

    def echo_of(self, choice: int) -> Echo | None:
        """The echo that comes before a choice's text."""
        return None if self.echoes is None else self.echoes[choice // self.choices_per_prompt]
