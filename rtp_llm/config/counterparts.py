# SPDX-License-Identifier: Apache-2.0
"""Flags of vLLM and SGLang next to the settings here; see llama_cpp_flags.py for llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Counterpart:
    """A flag of other engines, our settings that replace it, and the differences.

    If `ours` is empty, `note` says why there is none, completing the sentence "FLAG: ...".
    """

    vllm: str
    sglang: str
    ours: tuple[str, ...]
    note: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The flags that this row covers."""
        return tuple(filter(None, (self.vllm, self.sglang)))


NOT_YET = "not supported yet"
ALWAYS = "always on here; leave it out"
NO_DOWNLOAD = "nothing is downloaded; run `hf download NAME --local-dir FOLDER` and serve FOLDER"
ROPE = "rope scaling is what the model's config.json says (`rope_scaling`)"
BY_REQUEST = "each request says it; the model's generation_config.json has the defaults"
_AS_THEY_ARE = "the short names are taken, too"
_GRAPH_SIZES = (
    "sizes follow --max-running-requests, the drafts and the weights; `rtp-llm explain` counts them"
)
_ADMIN_KEY = "keys with `admin = true` in the file of keys"

COUNTERPARTS = (
    Counterpart("--max-model-len", "--context-length", ("max_seq_len",)),
    Counterpart("--max-num-seqs", "", ("max_running_requests",)),
    Counterpart("--max-num-batched-tokens", "--chunked-prefill-size", ("max_batch_tokens_size",)),
    Counterpart("", "--max-prefill-tokens", ("max_batch_tokens_size",)),
    Counterpart(
        "",
        "--mem-fraction-static",
        ("gpu_memory_utilization",),
        "what steps take is part of the share; kv_cache_mem_mb and reserve_runtime_mem_mb say MiB",
    ),
    Counterpart("--kv-cache-memory-bytes", "", ("kv_cache_mem_mb",), "MiB, not bytes"),
    Counterpart(
        "--num-gpu-blocks-override",
        "--max-total-tokens",
        ("kv_cache_mem_mb",),
        "MiB; `rtp-llm explain` says how many tokens fit",
    ),
    Counterpart("--block-size", "--page-size", ("seq_size_per_block",)),
    Counterpart("--device", "", ("device_type",)),
    Counterpart("", "--random-seed", ("seed",)),
    Counterpart("", "--mamba-ssm-dtype", ("mamba_ssm_cache_dtype",)),
    Counterpart(
        "--enable-prefix-caching", "--disable-radix-cache", ("reuse_cache",), "on by default"
    ),
    Counterpart("--no-enable-prefix-caching", "", ("reuse_cache",), "off"),
    Counterpart("--enforce-eager", "--disable-cuda-graph", ("enable_graphs",), "off"),
    Counterpart("--cudagraph-capture-sizes", "--cuda-graph-bs", (), _GRAPH_SIZES),
    Counterpart("--max-cudagraph-capture-size", "--cuda-graph-max-bs", (), _GRAPH_SIZES),
    Counterpart("--async-scheduling", "--disable-overlap-schedule", ("enable_overlap",)),
    Counterpart("--generation-config", "", ("use_generation_config",), "on or off"),
    Counterpart("--enable-log-requests", "--log-requests", ("access_log",), "on by default"),
    Counterpart("--no-enable-log-requests", "", ("access_log",), "off"),
    Counterpart("--disable-log-requests", "", ("access_log",), "off"),
    Counterpart("--disable-uvicorn-access-log", "", ("access_log",), "off"),
    Counterpart("--uvicorn-log-level", "--log-level-http", ("log_level",)),
    Counterpart("--disable-fastapi-docs", "", ("enable_docs",), "off"),
    Counterpart("--allowed-origins", "", ("cors_origins",), "separated by commas"),
    Counterpart("--h11-max-incomplete-event-size", "", ("max_header_bytes",)),
    Counterpart("--h11-max-header-count", "", ("max_headers",)),
    Counterpart("", "--admin-api-key", ("api_key_file",), _ADMIN_KEY),
    Counterpart("--profiler-config", "", ("profiler_dir",), "the folder alone, torch_profiler_dir"),
    Counterpart("", "--watchdog-timeout", ("step_timeout",)),
    Counterpart("-dp", "--dp-size", ("data_parallel_size",), _AS_THEY_ARE),
    Counterpart("", "--disaggregation-mode", ("role",), "prefill or decode"),
    Counterpart("--kv-transfer-config", "", ("role", "kv_transport"), "docs/disaggregation.md"),
    Counterpart("", "--disaggregation-transfer-backend", ("kv_transport",)),
    Counterpart("", "--disaggregation-bootstrap-port", ("prefill_address",), "HOST:PORT"),
    Counterpart(
        "--enable-expert-parallel",
        "--ep-size",
        ("data_parallel_size",),
        "experts are divided among the data-parallel ranks by themselves",
    ),
    Counterpart("", "--moe-runner-backend", ("moe_strategy",)),
    Counterpart("--enable-eplb", "--enable-eplb", ("eplb_mode",), "eplb or all"),
    Counterpart("", "--ep-num-redundant-experts", ("redundant_expert",)),
    Counterpart("", "--eplb-rebalance-num-iterations", ("eplb_update_time",)),
    Counterpart("", "--eplb-rebalance-layers-per-chunk", ("eplb_balance_layer_per_step",)),
    Counterpart("--model", "--model-path", ("model",), "the first argument: rtp-llm serve FOLDER"),
    Counterpart("--enable-chunked-prefill", "", (), ALWAYS),
    Counterpart("--enable-metrics", "--enable-metrics", (), "always on here: GET /metrics"),
    Counterpart("", "--enable-cache-report", (), ALWAYS),
    Counterpart("--enable-prompt-tokens-details", "", (), ALWAYS),
    Counterpart("--enable-server-load-tracking", "", (), "always on here: GET /load"),
    Counterpart("--enable-request-id-headers", "", (), ALWAYS),
    Counterpart(
        "--scheduling-policy", "--schedule-policy", (), "a request's `priority` is always honoured"
    ),
    Counterpart(
        "--trust-remote-code",
        "--trust-remote-code",
        (),
        "code of a model folder is never run here; leave it out",
    ),
    Counterpart("--tokenizer", "--tokenizer-path", (), "the tokenizer comes from the model folder"),
    Counterpart("--tokenizer-mode", "--tokenizer-mode", (), "there is one tokenizer; leave it out"),
    Counterpart("--download-dir", "--download-dir", (), NO_DOWNLOAD),
    Counterpart("--revision", "--revision", (), NO_DOWNLOAD),
    Counterpart("--hf-token", "", (), NO_DOWNLOAD),
    Counterpart("--rope-scaling", "", (), ROPE),
    Counterpart("--rope-theta", "", (), ROPE),
    Counterpart(
        "--hf-overrides",
        "--json-model-override-args",
        (),
        "change the model folder's config.json instead",
    ),
    Counterpart("--override-generation-config", "--preferred-sampling-params", (), BY_REQUEST),
    Counterpart("--runner", "--is-embedding", ("task",), "pooling; the names are taken, too"),
    Counterpart("--convert", "", ("task",), "embed or classify; the name is taken, too"),
    Counterpart(
        "--cpu-offload-gb", "--cpu-offload-gb", (), f"{NOT_YET}; all weights are on the device"
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
    Counterpart("--enable-lora", "--enable-lora", (), NOT_YET),
    Counterpart("--lora-modules", "--lora-paths", (), NOT_YET),
    Counterpart("--enable-auto-tool-choice", "", (), ALWAYS),
    Counterpart(
        "--structured-outputs-config",
        "--grammar-backend",
        (),
        "there is one library for grammars, llguidance; leave it out",
    ),
    Counterpart("--guided-decoding-backend", "", (), "there is one library for grammars"),
    Counterpart("", "--ssl-keyfile-password", (), "take it off the key with `openssl pkey`"),
    Counterpart("--ssl-ciphers", "", (), "TLS 1.2 and 1.3 with OpenSSL's choice; leave it out"),
    Counterpart("", "--fastapi-root-path", ("root_path",)),
)
