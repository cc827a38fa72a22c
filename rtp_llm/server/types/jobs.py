# SPDX-License-Identifier: Apache-2.0
"""The result of preparing a request: prompts to generate from, and response options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rtp_llm.request.beam_search import BeamSearch
from rtp_llm.request.constraints import Grammar, Thinking
from rtp_llm.request.params import PoolingParams
from rtp_llm.request.sampling_params import SamplingParams
from rtp_llm.text.parsers.spec import ParserSpec


@dataclass(frozen=True)
class Job:
    """One prompt and how to generate from it.

    `hidden`: ids of tokens without visible text; `stop_regex`: patterns that end an answer when
    its text matches; `grammar_source`: the source of `grammar` until it is compiled, see
    GrammarSource; `first_choice`: index of its first choice; `prompt_only`: the answer is neither
    shown nor counted; `parser`: parses the answer; `single_call`: the answer ends after its first
    tool call; `beam_search`: how the choices are found, with `params.n` as the width.
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
    beam_search: BeamSearch | None = None

    @property
    def num_choices(self) -> int:
        """Choices given for the prompt: all sequences, or the best of the beams."""
        best = None if self.beam_search is None else self.beam_search.num_return_sequences
        return self.params.n if best is None else best


@dataclass(frozen=True)
class PromptBatch:
    """Prompts of which something is pooled, as the engine takes them: `token_ids` are int32
    numbers, the prompts one after the other, `lengths` the tokens of each. `second_texts`: where
    the second of two texts begins in each, 0: it is one; empty: all are."""

    token_ids: bytes
    lengths: list[int]
    params: PoolingParams
    cache_salt: str = ""
    second_texts: Sequence[int] = ()


@dataclass(frozen=True)
class AnswerOptions:
    """The contents of an answer besides its text.

    `continuous_usage`: usage in every chunk; `token_ids`: token ids of prompts and answers;
    `tokens_as_ids`: log-probabilities name tokens "token_id:N"; `top_logprobs` and
    `prompt_logprobs`: number of most likely tokens, None: no log-probabilities;
    `named_logprobs`: only for the tokens that the request names, and the sampled one;
    `vllm_fields`: complete answers have vLLM's fields as null if they were not requested.
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
        """Whether log-probabilities of the answer are shown."""
        return self.top_logprobs is not None


@dataclass(frozen=True)
class ChatResponseOptions:
    """What a chat's choices contain.

    `echoes`: texts of last messages, one of which precedes each choice. `batch`: each choice
    answers another conversation. `reasoning_fields`: fields of a message for the reasoning; if
    empty, it is not shown; `functions`: calls are shown in the deprecated form, as
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
        """The text that precedes a choice's own text."""
        if not self.echoes:
            return ""
        return self.echoes[choice if self.batch else 0]


@dataclass(frozen=True)
class Echo:
    """An echoed prompt: its text, its token ids, and the offset of each token's text."""

    text: str
    token_ids: Sequence[int]
    offsets: Sequence[int]


@dataclass(frozen=True)
class CompletionResponseOptions:
    """What a completion's choices contain. `echoes`: one per prompt, or None.

    `drop_answer`: only the prompt was requested (max_tokens 0); generated text is not shown.
    """

    model: str
    choices_per_prompt: int
    num_choices: int
    options: AnswerOptions
    echoes: Sequence[Echo] | None = None
    drop_answer: bool = False

    def echo_of(self, choice: int) -> Echo | None:
        """The echo that precedes a choice's text."""
        return None if self.echoes is None else self.echoes[choice // self.choices_per_prompt]
