"""Flags of vLLM and SGLang and their counterparts here, for errors and docs/from_vllm.md."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from rtp_llm.config.options import flag_name


@dataclass(frozen=True)
class Counterpart:
    """A flag of other engines: our settings in its place, and what differs.

    Without `ours`, `note` says why there is none, as the rest of the sentence "FLAG: ...".
    """

    vllm: str
    sglang: str
    ours: tuple[str, ...]
    note: str = ""


_NOT_YET = "not supported yet"
_AS_THEY_ARE = "the short names are taken, too"
_NO_DOWNLOAD = "nothing is downloaded; run `hf download NAME --local-dir FOLDER` and serve FOLDER"
_GRAPH_SIZES = (
    "sizes follow --max-running-requests, the drafts and the weights; `rtp-llm explain` counts them"
)

COUNTERPARTS = (
    Counterpart("--max-model-len", "--context-length", ("max_seq_len",)),
    Counterpart("--max-num-seqs", "", ("max_running_requests",)),
    Counterpart("--max-num-batched-tokens", "--chunked-prefill-size", ("max_batch_tokens_size",)),
    Counterpart(
        "--gpu-memory-utilization",
        "--mem-fraction-static",
        ("kv_cache_mem_mb", "reserve_runtime_mem_mb"),
        "MiB, not a share: the size of the KV cache, or what it leaves free; by default it takes "
        "what a trial step left",
    ),
    Counterpart("--block-size", "--page-size", ("seq_size_per_block",)),
    Counterpart("--device", "", ("device_type",)),
    Counterpart("", "--random-seed", ("seed",)),
    Counterpart("", "--mamba-ssm-dtype", ("mamba_ssm_cache_dtype",)),
    Counterpart(
        "--enable-prefix-caching", "--disable-radix-cache", ("reuse_cache",), "on by default"
    ),
    Counterpart("--no-enable-prefix-caching", "", ("reuse_cache",), "off"),
    Counterpart("--enforce-eager", "--disable-cuda-graph", ("enable_cuda_graph",), "off"),
    Counterpart("--cudagraph-capture-sizes", "--cuda-graph-bs", (), _GRAPH_SIZES),
    Counterpart("--max-cudagraph-capture-size", "--cuda-graph-max-bs", (), _GRAPH_SIZES),
    Counterpart("--async-scheduling", "--disable-overlap-schedule", ("enable_overlap",)),
    Counterpart("--generation-config", "", ("use_generation_config",), "on or off"),
    Counterpart("--no-enable-log-requests", "", ("access_log",), "off"),
    Counterpart("--disable-log-requests", "", ("access_log",), "off"),
    Counterpart("--uvicorn-log-level", "--log-level-http", ("log_level",)),
    Counterpart("-dp", "--dp-size", ("data_parallel_size",), _AS_THEY_ARE),
    Counterpart("", "--disaggregation-mode", ("role",), "prefill or decode"),
    Counterpart(
        "--enable-expert-parallel",
        "--ep-size",
        ("data_parallel_size",),
        "experts are divided among the data-parallel ranks by themselves",
    ),
    Counterpart("--model", "--model-path", ("model",), "the first argument: rtp-llm serve FOLDER"),
    Counterpart("--enable-chunked-prefill", "", (), "always on here; leave it out"),
    Counterpart("--enable-metrics", "--enable-metrics", (), "always on here: GET /metrics"),
    Counterpart(
        "--scheduling-policy", "--schedule-policy", (), "a request's `priority` is always honoured"
    ),
    Counterpart(
        "--max-logprobs",
        "",
        ("max_prompt_logprobs",),
        "of a prompt's tokens; 20 for each generated one, always",
    ),
    Counterpart(
        "--trust-remote-code",
        "--trust-remote-code",
        (),
        "code of a model folder is never run here; leave it out",
    ),
    Counterpart("--tokenizer", "--tokenizer-path", (), "the tokenizer is that of the model folder"),
    Counterpart("--tokenizer-mode", "--tokenizer-mode", (), "there is one tokenizer; leave it out"),
    Counterpart("--download-dir", "--download-dir", (), _NO_DOWNLOAD),
    Counterpart("--revision", "--revision", (), _NO_DOWNLOAD),
    Counterpart(
        "--cpu-offload-gb", "--cpu-offload-gb", (), f"{_NOT_YET}; all weights are on the device"
    ),
    Counterpart(
        "--swap-space", "", (), "a preempted sequence is computed again; nothing is swapped"
    ),
    Counterpart("-tp", "--tp-size", ("tensor_parallel_size",), _AS_THEY_ARE),
    Counterpart("-pp", "--pp-size", ("pipeline_parallel_size",), _AS_THEY_ARE),
    Counterpart("-n", "", ("nnodes",), _AS_THEY_ARE),
    Counterpart("-r", "", ("node_rank",), _AS_THEY_ARE),
    Counterpart("", "--dist-init-addr", ("master_addr",), "its name is taken, too"),
    Counterpart("", "--speculative-algorithm", ("speculative",)),
    Counterpart("", "--speculative-draft-model-path", ("speculative_model",)),
    Counterpart("", "--speculative-num-draft-tokens", ("num_speculative_tokens",)),
    Counterpart("", "--speculative-num-steps", ("num_speculative_tokens",)),
    Counterpart("--enable-lora", "--enable-lora", (), _NOT_YET),
    Counterpart("--lora-modules", "--lora-paths", (), _NOT_YET),
    Counterpart("--enable-auto-tool-choice", "", (), "always on here; leave it out"),
    Counterpart(
        "--structured-outputs-config",
        "--grammar-backend",
        (),
        "there is one library for grammars, llguidance; leave it out",
    ),
    Counterpart("--guided-decoding-backend", "", (), "there is one library for grammars"),
    Counterpart("--ssl-keyfile", "--ssl-keyfile", (), "put a proxy with TLS before the server"),
    Counterpart("--ssl-certfile", "--ssl-certfile", (), "put a proxy with TLS before the server"),
)
_BY_FLAG = {flag: row for row in COUNTERPARTS for flag in (row.vllm, row.sglang) if flag}


def advice(flag: str, known: Iterable[str]) -> str:
    """What to write in place of the unknown `flag` ("--x-y"); `known` are those that exist."""
    row = _BY_FLAG.get(flag)
    if row is None:
        near = difflib.get_close_matches(flag, [*known, *_BY_FLAG], n=1)
        if not near:
            return "no such flag; --help lists them"
        return f"no such flag; did you mean {near[0]}?" + _also(near[0])
    if not row.ours:
        return row.note
    names = " or ".join("MODEL" if name == "model" else flag_name(name) for name in row.ours)
    return f"here it is {names}" + (f" ({row.note})" if row.note else "")


def table() -> list[str]:
    """The rows of docs/from_vllm.md."""
    lines = ["| vLLM | SGLang | here |", "| --- | --- | --- |"]
    for row in COUNTERPARTS:
        cells = [f"`{flag}`" if flag else "" for flag in (row.vllm, row.sglang)]
        ours = ", ".join("`MODEL`" if n == "model" else f"`{flag_name(n)}`" for n in row.ours)
        here = f"{ours}: {row.note}" if ours and row.note else ours or f"none: {row.note}"
        lines.append(f"| {cells[0]} | {cells[1]} | {here} |")
    return lines


def known_elsewhere(name: str) -> str | None:
    """For a setting's name of another engine (max_model_len): what to use here; else None."""
    flag = flag_name(name)
    return advice(flag, ()) if flag in _BY_FLAG else None


def _also(flag: str) -> str:
    return f" ({advice(flag, ())})" if flag in _BY_FLAG else ""
