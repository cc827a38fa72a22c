# SPDX-License-Identifier: Apache-2.0
"""`rtp-llm bench`: the benchmarks of `vllm bench`, with the same flags."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rtp_llm.bench.metric_names import LATENCIES, OBJECTIVES
from rtp_llm.client.sampling import PARAMETERS, add_sampling_flags, sampling_of
from rtp_llm.commands.command import CommandError, Parser
from rtp_llm.commands.model_flags import model_parser
from rtp_llm.config.command_line import read_settings
from rtp_llm.config.options import SettingsError

_ENDPOINTS = {
    "openai": "/v1/completions",
    "openai-chat": "/v1/chat/completions",
    "vllm": "/v1/completions",  # as in vLLM
}
_SAMPLING = tuple(name for name in PARAMETERS if name not in ("max_tokens", "seed"))
_DATASETS = ("random", "sharegpt", "custom")


def _serve_parser() -> argparse.ArgumentParser:
    made = Parser(
        "rtp-llm bench serve",
        "Send requests to any server with OpenAI's API and print throughput and latencies: time "
        "to first token (TTFT), per output token (TPOT), between events (ITL), to the end (E2EL). "
        "Tokens are counted by the server.",
    )
    made.add_argument("--base-url", metavar="URL", help="The server [http://HOST:PORT].")
    made.add_argument("--host", default="127.0.0.1", help="[%(default)s]")
    made.add_argument("--port", type=int, default=8088, help="[%(default)s]")
    text = "Completions or chats [%(default)s]."
    made.add_argument("--backend", choices=tuple(_ENDPOINTS), default="openai", help=text)
    text = "Path of the requests [the default of --backend]; its end selects completions or chats."
    made.add_argument("--endpoint", metavar="PATH", help=text)
    made.add_argument("--model", metavar="NAME", help="[the first one that is served]")
    made.add_argument("--served-model-name", metavar="NAME", help="The same.")
    text = "[RTP_LLM_API_KEY or OPENAI_API_KEY of the environment]"
    made.add_argument("--api-key", metavar="KEY", help=text)
    made.add_argument("--header", nargs="+", type=_pair, metavar="NAME=VALUE")
    text = "Fields of every request."
    made.add_argument("--extra-body", type=_json_object, metavar="JSON", help=text)
    made.add_argument("--insecure", action="store_true", help="Take any certificate.")
    text = "Model folder that prompts are counted by [the server counts two of them]."
    made.add_argument("--tokenizer", metavar="FOLDER", help=text)
    text = "How long to wait for the server."
    made.add_argument(
        "--ready-check-timeout-sec", type=float, default=0.0, metavar="SECONDS", help=text
    )
    _add_load(made)
    _add_dataset(made)
    add_sampling_flags(made, *_SAMPLING)
    _add_results(made)
    return made


def _add_load(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("load")
    text = "Requests per second; inf: all at once [%(default)s]."
    group.add_argument("--request-rate", type=_positive, default=float("inf"), help=text)
    text = "1: a Poisson process, less: more bursts, more: more even [%(default)s]."
    group.add_argument("--burstiness", type=_positive, default=1.0, help=text)
    text = "Requests that are open at once [no limit]."
    group.add_argument("--max-concurrency", type=_count, help=text)
    text = "Requests that are sent first, one after another, and not measured."
    group.add_argument("--num-warmups", type=int, default=0, help=text)
    group.add_argument("--disable-tqdm", action="store_true", help="Without a progress bar.")


def _add_dataset(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("requests")
    group.add_argument("--dataset-name", choices=_DATASETS, default="random", help="[%(default)s]")
    text = "ShareGPT's JSON, or lines of JSON with a prompt (custom)."
    group.add_argument("--dataset-path", metavar="FILE", help=text)
    group.add_argument("--num-prompts", type=_count, default=1000, help="[%(default)s]")
    group.add_argument("--seed", type=int, default=0, help="[%(default)s]")
    text = "Tokens of a prompt, whatever the data set."
    group.add_argument("--input-len", type=_count, help=text)
    text = "Tokens of an answer, whatever the data set."
    group.add_argument("--output-len", type=_count, help=text)
    group.add_argument("--random-input-len", type=_count, default=1024, help="[%(default)s]")
    group.add_argument("--random-output-len", type=_count, default=128, help="[%(default)s]")
    text = "Lengths are spread by this share around them, 0 to 1 [%(default)s]."
    group.add_argument("--random-range-ratio", type=_share, default=0.0, help=text)
    text = "Tokens that all prompts begin with, which come on top."
    group.add_argument("--random-prefix-len", type=int, default=0, help=text)
    text = "Tokens of an answer [as long as in the file]."
    group.add_argument("--sharegpt-output-len", type=_count, help=text)
    text = "Tokens of an answer; -1: output_tokens of the line [%(default)s]."
    group.add_argument("--custom-output-len", type=int, default=256, help=text)
    group.add_argument("--disable-shuffle", action="store_true", help="In the file's order.")


def _add_results(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("results")
    text = f"Latencies to print, of {', '.join(LATENCIES)} [%(default)s]."
    default = "ttft,tpot,itl,e2el"
    group.add_argument("--percentile-metrics", type=_latencies, default=default, help=text)
    text = "Percentiles of each, such as 50,90,99.9 [%(default)s]."
    group.add_argument("--metric-percentiles", type=_percentiles, default="99", help=text)
    text = "Count requests that keep to milliseconds: ttft:500 tpot:50 e2el:5000."
    group.add_argument("--goodput", nargs="+", type=_objective, metavar="NAME:MS", help=text)
    group.add_argument("--save-result", action="store_true", help="Write a JSON file.")
    text = "With times, texts and errors of each request."
    group.add_argument("--save-detailed", action="store_true", help=text)
    text = "Add a line to the file instead of writing a new one."
    group.add_argument("--append-result", action="store_true", help=text)
    group.add_argument("--result-dir", metavar="FOLDER")
    group.add_argument("--result-filename", metavar="NAME")
    group.add_argument("--label", help="First part of the file's name [the value of --backend].")
    text = "More fields of the file."
    group.add_argument("--metadata", nargs="+", type=_pair, metavar="NAME=VALUE", help=text)


def _offline_parser(name: str, about: str) -> argparse.ArgumentParser:
    made = model_parser(f"rtp-llm bench {name}", about, serves=False)
    made.add_argument("where", metavar="FOLDER", nargs="?", help="Model folder.")
    made.add_argument("--model", metavar="FOLDER", help="The same, as vLLM has it.")
    made.add_argument("--n", type=_count, default=1, help="Sequences for each prompt [1].")
    made.add_argument("--output-json", metavar="FILE", help="Write the figures here.")
    return made


def _latency_parser() -> argparse.ArgumentParser:
    made = _offline_parser(
        "latency", "Time one batch of random prompts in the engine, without a server."
    )
    made.add_argument("--input-len", type=_count, default=32, help="[%(default)s]")
    made.add_argument("--output-len", type=_count, default=128, help="[%(default)s]")
    made.add_argument("--batch-size", type=_count, default=8, help="[%(default)s]")
    made.add_argument("--num-iters-warmup", type=int, default=10, help="[%(default)s]")
    made.add_argument("--num-iters", type=_count, default=30, help="[%(default)s]")
    made.add_argument("--seed", type=int, default=0, help="[%(default)s]")
    return made


def _throughput_parser() -> argparse.ArgumentParser:
    made = _offline_parser("throughput", "Give the engine many requests at once, without a server.")
    made.add_argument("--disable-tqdm", action="store_true", help="Without a progress line.")
    _add_dataset(made)
    return made


PARSERS: dict[str, Callable[[], argparse.ArgumentParser]] = {
    "serve": _serve_parser,
    "latency": _latency_parser,
    "throughput": _throughput_parser,
}
_USAGE = """\
usage: rtp-llm bench serve|latency|throughput [flags]

  serve       throughput and latencies of any server with OpenAI's API
  latency     time of one batch in the engine, without a server
  throughput  requests and tokens per second of the engine, without a server

`rtp-llm bench serve --help` lists its flags, which are named as in `vllm bench`.
"""


def main(words: Sequence[str]) -> int:
    """Run a benchmark and print its result."""
    name = words[0] if words else ""
    if name in ("--help", "-h"):
        print(_USAGE, end="")
        return 0
    if name not in PARSERS:
        print(f"rtp-llm bench: what to measure is needed\n\n{_USAGE}", end="", file=sys.stderr)
        return 2
    arguments = PARSERS[name]().parse_args(words[1:])
    if getattr(arguments, "dataset_path", None) is None and (
        getattr(arguments, "dataset_name", "random") != "random"
    ):
        raise SettingsError(f"--dataset-path: give the file of {arguments.dataset_name}")
    return _serve(arguments) if name == "serve" else _offline(name, arguments)


def _serve(arguments: argparse.Namespace) -> int:
    from rtp_llm.bench.samples import DatasetError
    from rtp_llm.bench.serve import measure
    from rtp_llm.chat.target import given_key
    from rtp_llm.client.openai import ServerError

    arguments.base_url = arguments.base_url or f"http://{arguments.host}:{arguments.port}"
    arguments.endpoint = arguments.endpoint or _ENDPOINTS[arguments.backend]
    arguments.sampling = sampling_of(arguments, *_SAMPLING)
    try:
        return measure(arguments, given_key(arguments.api_key))
    except DatasetError as error:
        raise CommandError(str(error)) from error
    except (ServerError, OSError, ValueError) as error:
        raise CommandError(f"{arguments.base_url}: {error}") from error


def _offline(name: str, arguments: argparse.Namespace) -> int:
    settings = read_settings(arguments).settings
    model = arguments.where or arguments.model or settings.model
    if not model:
        raise SettingsError("FOLDER: give the folder of a model")
    from rtp_llm.bench.offline import measure_latency, measure_throughput
    from rtp_llm.engine.messages import EngineStartError

    settings = replace(settings, model=model)
    measure = measure_throughput
    if name == "latency":
        measure = measure_latency
        if arguments.reuse_cache is None:  # or later runs would find the batch cached
            settings = replace(settings, reuse_cache=False)
    try:
        return measure(arguments, settings)
    except (EngineStartError, ValueError, OSError) as error:  # errors of files and settings, too
        raise CommandError(str(error)) from error


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name.strip(), value.strip()


def _objective(text: str) -> tuple[str, float]:
    name, _, value = text.partition(":")
    try:
        if name in OBJECTIVES and float(value) >= 0:
            return name, float(value)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(
        f"{text!r} is not NAME:MILLISECONDS with a name of {', '.join(OBJECTIVES)}"
    )


def _json_object(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return content


def _latencies(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in LATENCIES:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(LATENCIES)}")
    return names


def _percentiles(text: str) -> list[float]:
    return [_checked(each, 0.0, 100.0) for each in text.split(",")]


def _positive(text: str) -> float:
    if (value := _checked(text, 0.0, float("inf"))) > 0:
        return value
    raise argparse.ArgumentTypeError(f"{text!r} is not above 0")


def _share(text: str) -> float:
    return _checked(text, 0.0, 1.0)


def _checked(text: str, low: float, high: float) -> float:
    try:
        if low <= (value := float(text)) <= high:
            return value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low:g} to {high:g}")


def _count(text: str) -> int:
    if text.isdecimal() and int(text):
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
