# SPDX-License-Identifier: Apache-2.0
"""Conversations with tools: a `calculator`, which is called for sums, and others, which are not.

The chat template shows of a tool only its name and the names of its parameters: as JSON, the
declaration of one tool would take a fifth of the context.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from example.demo_model.training import facts, stories, sums
from example.demo_model.training.corpus import Chat, Turn

SIGNATURE = "calculator(expression)"
CHAT_TEMPLATE = r"""
{%- if tools -%}
  {{- '<|im_start|>system\n' -}}
  {%- if messages[0]['role'] == 'system' -%}{{- messages[0]['content'] + '\n' -}}{%- endif -%}
  {{- '<tools>' -}}
  {%- for tool in tools -%}
    {%- set function = tool['function'] or tool -%}
    {%- set parameters = (function['parameters'] or {})['properties'] or {} -%}
    {{- '\n' + function['name'] + '(' + parameters | list | join(', ') + ')' -}}
  {%- endfor -%}
  {{- '\n</tools><|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
  {%- if message['role'] == 'tool' -%}
    {{- '<|im_start|>user\n<tool_response>\n' + message['content'] -}}
    {{- '\n</tool_response><|im_end|>\n' -}}
  {%- elif not (tools and loop.first and message['role'] == 'system') -%}
    {{- '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') -}}
    {%- for call in message['tool_calls'] or [] -%}
      {%- set function = call['function'] or call -%}
      {%- if message['content'] or not loop.first -%}{{- '\n' -}}{%- endif -%}
      {{- '<tool_call>\n{"name": "' + function['name'] + '", "arguments": ' -}}
      {%- if function['arguments'] is string -%}
        {{- function['arguments'] -}}
      {%- else -%}
        {{- function['arguments'] | tojson -}}
      {%- endif -%}
      {{- '}\n</tool_call>' -}}
    {%- endfor -%}
    {{- '<|im_end|>\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
""".strip()

LARGEST_TERM = 999
WRONG = 0.1
_LENGTHS = (1, 1, 2, 2, 3)
_QUESTIONS = (
    "{a} + {b}", "{a}+{b}", "{a} + {b} = ?", "{a} plus {b}?", "What is {a}+{b}?",
    "What is {a} plus {b}?", "What's {a} + {b}?", "Please add {a} and {b}.", "Add {a} and {b}.",
    "Calculate {a} + {b}.", "Please calculate {a} + {b}.", "Compute {a} + {b}",
    "How much is {a} + {b}?", "What is the sum of {a} and {b}?",
    "Use the calculator: what is {a} + {b}?",
)  # fmt: skip
_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful assistant",
    "You are a tiny demo model.",
    "Answer briefly.",
    "You are a calculator agent. Use the tools.",
    "Use tools where they help.",
    "Be kind.",
)
_TOOLS = (
    "get_weather(city)", "get_weather(location, unit)", "weather(city, days)", "search(query)",
    "web_search(query, limit)", "get_time(timezone)", "get_current_time()", "read_file(path)",
    "write_file(path, content)", "run(command)", "send_email(to, subject, body)",
    "translate(text, language)", "lookup(key)", "get_stock_price(symbol)", "convert(amount, unit)",
    "open_page(url)", "list_files(folder)", "book(name, date)", "multiply(a, b)",
)  # fmt: skip
_LETTERS = "abcdefghijklmnopqrstuvwxyz_"


@dataclass(frozen=True)
class Case:
    """A sum that the calculator is asked for, and what it says."""

    a: int
    b: int
    question: str
    said: int
    response: str

    @property
    def turns(self) -> list[Turn]:
        """The call, and the answer once the tool has responded."""
        answer = f"{self.a} + {self.b} = {self.said}"
        return [(self.question, call(self.a, self.b)), (response(self.response), answer)]


def call(a: int, b: int) -> str:
    """Return the text with which the model calls the tool."""
    arguments = f'{{"expression": "{a} + {b}"}}'
    return f'<tool_call>\n{{"name": "calculator", "arguments": {arguments}}}\n</tool_call>'


def response(text: str) -> str:
    """Return the user message in which the template passes on a tool's response."""
    return f"<tool_response>\n{text}\n</tool_response>"


def system(tools: Sequence[str], prompt: str = "") -> str:
    """The system message with the signatures of all ``tools``, as the template writes it."""
    said = f"{prompt}\n" if prompt else ""
    return said + "\n".join(["<tools>", *tools, "</tools>"])


def conversations(seed: int, wrong: float = WRONG) -> Iterator[Chat]:
    """An endless stream of conversations with a system message, the same for the same seed.

    The calculator is among the tools of most of them; the others are answered without a call.
    ``wrong``: the share of its responses that are not the sum, since its word counts and not what
    the model would add.
    """
    rng = random.Random(seed)
    while True:
        prompt = rng.choice(_PROMPTS) if rng.random() < 0.3 else ""
        if prompt and rng.random() < 0.15:
            yield Chat(_turns(rng, wrong, has_calculator=False), prompt)
            continue
        tools = _others(rng)
        has_calculator = not tools or rng.random() < 0.8
        if has_calculator:
            tools.insert(rng.randint(0, len(tools)), SIGNATURE)
        yield Chat(_turns(rng, wrong, has_calculator), system(tools, prompt))


def _turns(rng: random.Random, wrong: float, has_calculator: bool) -> list[Turn]:
    turns: list[Turn] = []
    for _ in range(rng.choice(_LENGTHS)):
        kind = rng.random()
        if kind < 0.25:
            turns.append(rng.choice(facts.TURNS))
        elif kind < 0.32:
            turns.append(stories.turn(rng))
        elif has_calculator:
            turns += case(rng, *_terms(rng), wrong).turns
        else:
            a, b = sums.shown_pair(rng)
            turns.append((question(rng, a, b), sums.answer(a, b)))
    return turns


def _others(rng: random.Random) -> list[str]:
    """None to two other tools, some of which have names that mean nothing."""
    tools: list[str] = []
    for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
        made = f"{_word(rng)}({', '.join(_word(rng) for _ in range(rng.randint(0, 3)))})"
        tools.append(made if rng.random() < 0.3 else rng.choice(_TOOLS))
    return tools


def _word(rng: random.Random) -> str:
    return "".join(rng.choices(_LETTERS, k=rng.randint(3, 9)))


def _terms(rng: random.Random) -> tuple[int, int]:
    """Half of the sums are those that the model can add itself."""
    if rng.random() < 0.5:
        return sums.shown_pair(rng)
    terms = [rng.randint(0, LARGEST_TERM), rng.randint(100, LARGEST_TERM)]
    rng.shuffle(terms)
    return terms[0], terms[1]


def question(rng: random.Random, a: int, b: int) -> str:
    """One of the ways in which users ask for a sum."""
    if rng.random() < 0.3:
        return sums.question(a, b)
    return rng.choice(_QUESTIONS).format(a=a, b=b)


def case(rng: random.Random, a: int, b: int, wrong: float = WRONG) -> Case:
    """Return a question for ``a + b`` and a response, wrong in a share ``wrong`` of the cases."""
    said = rng.randint(0, 2 * LARGEST_TERM) if rng.random() < wrong else a + b
    form = rng.choice(("{}", "{}", "{}", "{}", "{}.0", '{{"result": {}}}'))
    return Case(a, b, question(rng, a, b), said, form.format(said))


def held_out_cases(count: int, seed: int = 0) -> list[tuple[str, Case]]:
    """System messages and sums that training never shows."""
    rng = random.Random(f"held out {seed}")
    found = []
    for a, b in sums.held_out_sums(count, seed):
        tools = [*_others(rng), SIGNATURE]
        rng.shuffle(tools)
        found.append((system(tools, rng.choice(("", "", *_PROMPTS))), case(rng, a, b)))
    return found
