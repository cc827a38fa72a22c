# SPDX-License-Identifier: Apache-2.0
"""Benchmark requests: random, from ShareGPT conversations, or from a file of prompts."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtp_llm.bench.texts import Texts

# Only ShareGPT conversations within these bounds are used, as in vLLM.
_MIN_TOKENS, _MAX_PROMPT, _MAX_TOKENS = 4, 1024, 2048


class DatasetError(ValueError):
    """The data set cannot be used; the message says why."""


@dataclass(frozen=True)
class Sample:
    """One request. ``prompt_tokens``: the count, if it is known before the answer."""

    prompt: str
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Lengths:
    """Lengths of random requests, in tokens. ``ratio``: relative spread around the means;
    ``prefix``: additional tokens that all prompts begin with."""

    prompt: int
    output: int
    ratio: float = 0.0
    prefix: int = 0

    def draw(self, source: random.Random) -> tuple[int, int]:
        """Draw the numbers of tokens of a prompt, without its prefix, and of its answer."""
        spread = [
            source.randint(math.floor(mean * (1 - self.ratio)), math.ceil(mean * (1 + self.ratio)))
            for mean in (self.prompt, self.output)
        ]
        return max(0 if self.prefix else 1, spread[0]), max(1, spread[1])


def random_samples(count: int, lengths: Lengths, texts: Texts, seed: int) -> list[Sample]:
    """Prompts of random text, reproducible for a given seed."""
    source = random.Random(seed)
    prefix = texts.make(source, lengths.prefix) if lengths.prefix else ""
    samples = []
    for _ in range(count):
        prompt, output = lengths.draw(source)
        text = texts.make(source, prompt + lengths.prefix, prefix)
        samples.append(Sample(text, prompt + lengths.prefix, output))
    return samples


def sharegpt_samples(
    path: str, count: int, output: int | None, texts: Texts, seed: int
) -> list[Sample]:
    """The first questions of conversations, in random order; answers are as long as in the file,
    or ``output`` tokens.

    Raises:
        DatasetError: the file cannot be read, or has no conversation of a usual length.
    """
    found = list(_questions(_load_json(path)))
    random.Random(seed).shuffle(found)
    return _enough(path, _usual(found, output, texts), count)


def custom_samples(
    path: str, count: int, output: int, texts: Texts, seed: int, *, shuffle: bool = True
) -> list[Sample]:
    """Read JSON lines with a `prompt` and optional `output_tokens`, used if ``output`` is -1.

    Raises:
        DatasetError: the file cannot be read, or a line lacks a required field.
    """
    lines = [line for line in _read(path).splitlines() if line.strip()]
    samples = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            prompt, tokens = str(row["prompt"]), int(row["output_tokens"] if output < 0 else output)
        except (ValueError, LookupError, TypeError) as error:
            raise DatasetError(
                f'{path}, line {number}: a line is {{"prompt": TEXT}}, with "output_tokens" where '
                f"--custom-output-len is -1 ({error})"
            ) from error
        samples.append(Sample(prompt, texts.count(prompt), tokens))
    if shuffle:
        random.Random(seed).shuffle(samples)
    return _enough(path, iter(samples), count)


def random_lengths(arguments: argparse.Namespace) -> Lengths:
    """The lengths of random prompts and answers, by the flags of a benchmark."""
    return Lengths(
        arguments.input_len or arguments.random_input_len,
        arguments.output_len or arguments.random_output_len,
        arguments.random_range_ratio,
        arguments.random_prefix_len,
    )


def file_samples(arguments: argparse.Namespace, texts: Texts) -> list[Sample]:
    """The samples of a dataset's file, by the flags of a benchmark; raises DatasetError."""
    count, seed, path = arguments.num_prompts, arguments.seed, arguments.dataset_path
    if arguments.dataset_name == "sharegpt":
        output = arguments.output_len or arguments.sharegpt_output_len
        return sharegpt_samples(path, count, output, texts, seed)
    output = arguments.output_len or arguments.custom_output_len
    shuffle = not arguments.disable_shuffle
    return custom_samples(path, count, output, texts, seed, shuffle=shuffle)


def _questions(content: Any) -> Iterator[tuple[str, str]]:
    for each in content if isinstance(content, list) else ():
        turns = each.get("conversations") if isinstance(each, dict) else None
        if isinstance(turns, list) and len(turns) >= 2:
            yield str(turns[0].get("value", "")), str(turns[1].get("value", ""))


def _usual(found: Sequence[tuple[str, str]], output: int | None, texts: Texts) -> Iterator[Sample]:
    for question, answer in found:
        prompt = texts.count(question)
        tokens = output or texts.count(answer)
        short = min(prompt, tokens) < _MIN_TOKENS
        if not short and prompt <= _MAX_PROMPT and prompt + tokens <= _MAX_TOKENS:
            yield Sample(question, prompt, tokens)


def _enough(path: str, samples: Iterator[Sample], count: int) -> list[Sample]:
    """The first ``count`` samples, repeated from the beginning if there are fewer."""
    first = list(itertools.islice(samples, count))
    if not first:
        raise DatasetError(f"{path}: it has nothing that could be sent")
    return list(itertools.islice(itertools.cycle(first), count))


def _load_json(path: str) -> Any:
    try:
        return json.loads(_read(path))
    except ValueError as error:
        raise DatasetError(f"{path}: not valid JSON: {error}") from error


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"{path}: {error}") from error
