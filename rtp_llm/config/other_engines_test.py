# SPDX-License-Identifier: Apache-2.0
"""Flags of other engines are answered with ours, whichever engine they are of."""

from __future__ import annotations

import pytest

from rtp_llm.config.command_line import build_parser, load_settings
from rtp_llm.config.counterparts import COUNTERPARTS, Counterpart
from rtp_llm.config.llama_cpp_flags import LLAMA_CPP, LlamaCppFlag
from rtp_llm.config.options import SettingsError, flag_name
from rtp_llm.config.settings import options
from rtp_llm.config.suggestions import meant

PARSER = build_parser()
# What a newcomer writes, and a part of the answer.
WRITTEN = {
    "-m": "here it is MODEL",
    "--model": "here it is MODEL",
    "--model-path": "here it is MODEL",
    "-c": "here it is --max-seq-len",
    "--ctx-size": "here it is --max-seq-len",
    "--max-model-len": "here it is --max-seq-len",
    "--context-length": "here it is --max-seq-len",
    "-ngl": "--device-type",
    "--n-gpu-layers": "--device-type",
    "-np": "here it is --max-running-requests",
    "--parallel": "here it is --max-running-requests",
    "--max-num-seqs": "here it is --max-running-requests",
    "-t": "here it is --num-threads",
    "--threads": "here it is --num-threads",
    "-b": "here it is --max-batch-tokens-size",
    "--ubatch-size": "here it is --max-batch-tokens-size",
    "--max-num-batched-tokens": "here it is --max-batch-tokens-size",
    "--chunked-prefill-size": "here it is --max-batch-tokens-size",
    "--temp": "`temperature`",
    "--top-k": "`top_k`",
    "--top-p": "`top_p`",
    "--min-p": "`min_p`",
    "--repeat-penalty": "`repetition_penalty`",
    "--n-predict": "`max_tokens`",
    "--jinja": "leave it out",
    "--chat-template-file": "here it is --chat-template",
    "--reasoning-format": "here it is --reasoning-parser",
    "--reasoning-budget": "`thinking_token_budget`",
    "--flash-attn": "here it is --attention-backend",
    "-fa": "here it is --attention-backend",
    "--cache-type-k": "here it is --kv-cache-dtype",
    "--no-mmap": "leave it out",
    "--mlock": "leave it out",
    "--cont-batching": "leave it out",
    "--no-cache-prompt": "here it is --reuse-cache",
    "-a": "here it is --served-model-name",
    "--alias": "here it is --served-model-name",
    "-hf": "hf download",
    "--hf-repo": "hf download",
    "-md": "here it is --speculative-model",
    "--draft-max": "here it is --num-speculative-tokens",
    "--split-mode": "here it is --tensor-parallel-size or --pipeline-parallel-size",
    "--tensor-split": "--tensor-parallel-size",
    "--metrics": "GET /metrics",
    "--slots": "/load",
    "--no-webui": "here it is --page (off)",
    "-v": "here it is --log-level (debug)",
    "--verbose": "here it is --log-level (debug)",
    "--log-file": "standard error",
    "--version": "rtp-llm --version",
    "--mmproj": "not supported yet",
    "--lora": "not supported yet",
    "--reranking": "here it is --task",
    "--keepalive": "stays loaded",
    "--think": "`enable_thinking`",
    "--format": "`response_format`",
    "--mem-fraction-static": "--gpu-memory-utilization",
    "--enforce-eager": "here it is --enable-graphs",
    "--disable-radix-cache": "here it is --reuse-cache",
    "--trust-remote-code": "leave it out",
    "--allowed-origins": "here it is --cors-origins",
    "--disable-log-requests": "here it is --access-log",
    "--kv-cache-memory-bytes": "here it is --kv-cache-mem-mb",
    "--random-seed": "here it is --seed",
}


def refusal(*argv: str) -> list[str]:
    with pytest.raises(SystemExit) as stopped, pytest.MonkeyPatch.context() as patch:
        said: list[str] = []
        patch.setattr(PARSER, "_print_message", lambda message, file=None: said.append(message))
        load_settings(argv, {}, PARSER)
    assert stopped.value.code == 2
    return "".join(said).splitlines()


@pytest.mark.parametrize("flag", WRITTEN)
def test_what_newcomers_write_is_answered(flag: str) -> None:
    (line,) = refusal("m", flag, "8")
    assert f"error: {flag}: " in line
    assert WRITTEN[flag] in line


def test_every_name_of_the_tables_is_answered_or_taken() -> None:
    assert len(WRITTEN) >= 60
    rows: list[Counterpart | LlamaCppFlag] = [*COUNTERPARTS, *LLAMA_CPP]
    names = {name for row in rows for name in row.names}
    assert len(names) >= 250
    for name in sorted(names - PARSER._option_string_actions.keys()):
        (line,) = refusal("m", name, "8")
        assert "no such flag" not in line, line
    for row in rows:
        assert set(row.ours) <= options().keys(), row
        assert row.ours or row.note, row
        for name in row.names:
            named = options().get(name.removeprefix("--").replace("-", "_"))
            assert named is None or named.positional, row


def test_short_flags_are_whole_words() -> None:
    for flag in ("-t", "-d", "-p", "-ng", "-ngl", "-nd", "-r1", "-n4", "-tp8"):
        (line,) = refusal("m", flag, "8")
        assert f"error: {flag}: " in line
    assert load_settings(["m", "-tp", "8"], {}, PARSER).settings.tensor_parallel_size == 8
    with pytest.raises(SettingsError, match=r"--port: -1 is below the minimum"):
        load_settings(["m", "--port", "-1"], {}, PARSER)


def test_all_unknown_flags_are_answered_at_once() -> None:
    lines = refusal("-m", "x.gguf", "-c", "4096", "-ngl", "99", "--jinja", "-c", "1")
    flags = [line.split("error: ")[1].split(":")[0] for line in lines]
    assert flags == ["-m", "-c", "-ngl", "--jinja"]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("--prot", "--port"),
        ("--hots", "--host"),
        ("--max-sequence-length", "--max-seq-len"),
        ("--max_seq_lenght", "--max-seq-len"),
        ("--kv-cache-memory-mb", "--kv-cache-mem-mb"),
        ("--max-running-request", "--max-running-requests"),
        ("--model-name", "--served-model-name"),
        ("--tensor-paralell-size", "--tensor-parallel-size"),
        # These look alike and mean something else.
        ("--temp", None),
        ("--parallel", None),
        ("--threads-http", None),
        ("--batch", None),
        ("--max-requests", None),
        ("--cache-size", None),
        ("--role-model", None),
        ("--timeout", None),
        ("--x", None),
    ],
)
def test_a_suggestion_means_the_same(name: str, wanted: str | None) -> None:
    assert meant(name, map(flag_name, options())) == wanted


def test_a_switch_is_turned_off_in_its_own_way() -> None:
    (line,) = refusal("m", "--no-reuse-cache")
    assert line.endswith("--no-reuse-cache: here it is --reuse-cache off")
