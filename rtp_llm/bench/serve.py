# SPDX-License-Identifier: Apache-2.0
"""`rtp-llm bench serve`: a load test of any server with OpenAI's API."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from rtp_llm.bench.arrivals import arrivals
from rtp_llm.bench.load import Bar, Load, Outcome, send_all
from rtp_llm.bench.metrics import details, summarise
from rtp_llm.bench.report import date_now, file_name, save, serving_report
from rtp_llm.bench.samples import (
    DatasetError,
    Sample,
    file_samples,
    random_lengths,
    random_samples,
)
from rtp_llm.bench.texts import Texts, TokenizerTexts, WordTexts
from rtp_llm.client.openai import OpenAIClient, ServerError

_CALIBRATION_WORDS = 8, 200  # at least, at most
_MAX_TOKENS_PER_WORD = 4
_SHOWN_ERRORS = 10
_RETRY_SECONDS = 0.5


def measure(arguments: argparse.Namespace, api_key: str | None) -> int:
    """Run the benchmark and print its result; returns the exit code, 1 if no request succeeded.

    Raises:
        DatasetError: the file of the data set, or the tokenizer, cannot be used.
        ServerError, OSError: the server does not answer, or the result cannot be saved.
    """
    _allow_connections()
    return uvloop.run(_measure(arguments, api_key))


async def _measure(arguments: argparse.Namespace, api_key: str | None) -> int:
    base = arguments.base_url.rstrip("/")
    if arguments.endpoint.startswith("/v1/"):
        base = base.removesuffix("/v1")
    headers = dict(arguments.header or ())
    api = OpenAIClient(base, api_key, headers, verify=not arguments.insecure)
    with contextlib.closing(api):
        model = await _model(api, arguments)
        body = {"model": model, **arguments.sampling, **(arguments.extra_body or {})}
        load = Load(api, arguments.endpoint, body)
        samples = await _samples(arguments, load)
        for sample in samples[: arguments.num_warmups]:
            await load.send(sample, Outcome(0))
        times = arrivals(len(samples), arguments.request_rate, arguments.burstiness, arguments.seed)
        bar = Bar("sending", len(samples), show=not arguments.disable_tqdm)
        outcomes, seconds = await send_all(load, samples, times, arguments.max_concurrency, bar)
    _report_problems(outcomes)
    return _finish(arguments, model, outcomes, seconds)


def _finish(
    arguments: argparse.Namespace, model: str, outcomes: Sequence[Outcome], seconds: float
) -> int:
    names, percentiles = arguments.percentile_metrics, arguments.metric_percentiles
    rate = arguments.request_rate
    result = {
        "date": date_now(),
        "backend": arguments.backend,
        "label": arguments.label,
        "model_id": model,
        "tokenizer_id": arguments.tokenizer,
        "num_prompts": len(outcomes),
        **dict(arguments.metadata or ()),
        "request_rate": rate if rate < float("inf") else "inf",
        "burstiness": arguments.burstiness,
        "max_concurrency": arguments.max_concurrency,
        **summarise(outcomes, seconds, dict(arguments.goodput or ()), names, percentiles),
    }
    print(serving_report(result, names, percentiles))
    if arguments.save_result or arguments.append_result:
        path = _path(arguments, model, result)
        extra = details(outcomes) if arguments.save_detailed else {}
        save(path, {**result, **extra}, append=arguments.append_result)
        print(f"saved to {path}", file=sys.stderr)
    return 0 if result["completed"] else 1


def _path(arguments: argparse.Namespace, model: str, result: dict[str, Any]) -> Path:
    label = arguments.label or arguments.backend
    name = arguments.result_filename or file_name(
        label, result["request_rate"], arguments.max_concurrency, model, result["date"]
    )
    return Path(arguments.result_dir or ".") / name


async def _model(api: OpenAIClient, arguments: argparse.Namespace) -> str:
    """The model to request; waits for the server if asked to."""
    until = time.monotonic() + arguments.ready_check_timeout_sec
    given = arguments.served_model_name or arguments.model
    while True:
        try:
            if given and not arguments.ready_check_timeout_sec:
                return str(given)
            first = await api.first_model("/v1/models")
            return str(given or first)
        except (OSError, ServerError):
            if time.monotonic() > until:
                raise
            await asyncio.sleep(_RETRY_SECONDS)


async def _samples(arguments: argparse.Namespace, load: Load) -> list[Sample]:
    if arguments.dataset_name == "random":
        lengths = random_lengths(arguments)
        known = await _texts(arguments, load, lengths.prompt)
        return random_samples(arguments.num_prompts, lengths, known, arguments.seed)
    texts: Texts = _tokenizer_texts(arguments.tokenizer) or WordTexts()
    if arguments.tokenizer is None:
        print("without --tokenizer a token is taken for four characters", file=sys.stderr)
    return file_samples(arguments, texts)


async def _texts(arguments: argparse.Namespace, load: Load, tokens: int) -> Texts:
    """Texts by the given tokenizer; otherwise calibrated by the server's token counts of words.

    ``tokens``: the length of a prompt, which the calibration prompts do not exceed.
    """
    if (texts := _tokenizer_texts(arguments.tokenizer)) is not None:
        return texts
    source, counted = random.Random(arguments.seed), []
    minimum, maximum = _CALIBRATION_WORDS
    several = min(maximum, max(minimum, tokens // _MAX_TOKENS_PER_WORD))
    for words in (1, several):
        outcome = Outcome(0)
        await load.send(Sample(WordTexts().make(source, words), 0, 1), outcome)
        if outcome.error:
            raise ServerError(0, outcome.error)
        counted.append(outcome.prompt_tokens)
    per_word = (counted[1] - counted[0]) / (several - 1)
    if per_word <= 0:
        print("the server does not count tokens: a word is taken for one", file=sys.stderr)
        return WordTexts()
    return WordTexts(per_word, counted[0] - per_word)


def _tokenizer_texts(folder: str | None) -> TokenizerTexts | None:
    if folder is None:
        return None
    from rtp_llm.text.tokenizer import Tokenizer

    try:
        return TokenizerTexts(Tokenizer.from_folder(folder))
    except (ValueError, OSError) as error:
        raise DatasetError(f"--tokenizer: {error}") from error


def _report_problems(outcomes: Sequence[Outcome]) -> None:
    errors = [each.error for each in outcomes if each.error]
    for text in errors[:_SHOWN_ERRORS]:
        print(f"failed: {text}", file=sys.stderr)
    if len(errors) > _SHOWN_ERRORS:
        print(f"... and {len(errors) - _SHOWN_ERRORS} more", file=sys.stderr)
    if any(not (each.is_counted or each.error) for each in outcomes):
        print("the server counts no tokens: events of its streams were counted", file=sys.stderr)


def _allow_connections() -> None:
    """Raise the limit of open files: each open request has a connection."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
