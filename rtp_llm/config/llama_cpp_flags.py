# SPDX-License-Identifier: Apache-2.0
"""Flags of llama.cpp's server and of `ollama run` next to the settings here."""

from __future__ import annotations

from dataclasses import dataclass

from rtp_llm.config.counterparts import ALWAYS, NO_DOWNLOAD, NOT_YET, ROPE


@dataclass(frozen=True)
class LlamaCppFlag:
    """One of llama.cpp's flags with all its `names`; see Counterpart for `ours` and `note`."""

    names: tuple[str, ...]
    ours: tuple[str, ...]
    note: str = ""


def _row(names: str, ours: str = "", note: str = "") -> LlamaCppFlag:
    return LlamaCppFlag(tuple(names.split()), tuple(ours.split()), note)


def _field(name: str) -> str:
    return f"each request says it as `{name}`; generation_config.json of the model has the default"


_WHOLE = "the whole model is on the device; --device-type cpu puts all of it on the CPU"
_PARTS = (
    "a model is divided with --tensor-parallel-size or --pipeline-parallel-size, in equal parts"
)
_SEEN = "the environment of the driver chooses among its devices (docs/devices.md)"
_SAMPLER = "there is no such sampler here"
_LOADED = "weights are read from their files straight into place; leave it out"
_BINDING = "start the server with taskset or numactl to bind it to cores"

LLAMA_CPP = (
    _row("-m --model", "model", "the first argument: `rtp-llm serve FILE.gguf`"),
    _row("-mu --model-url -hf -hfr --hf-repo -hff --hf-file -dr --docker-repo", "", NO_DOWNLOAD),
    _row("-hft", "", NO_DOWNLOAD),
    _row("-c --ctx-size", "max_seq_len", "of each sequence, not of all together"),
    _row("-np --parallel", "max_running_requests", "they share the KV cache as they need it"),
    _row("-b --batch-size -ub --ubatch-size", "max_batch_tokens_size"),
    _row("-t --threads -tb --threads-batch", "num_threads"),
    _row("-C --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll --numa", "", _BINDING),
    _row("-ngl --gpu-layers --n-gpu-layers", "device_type", _WHOLE),
    _row("-cmoe --cpu-moe -ncmoe --n-cpu-moe -ot --override-tensor", "", _WHOLE),
    _row("-dev", "device_type", _SEEN),
    _row("--list-devices", "", "`rtp-llm explain FOLDER` says which device is taken"),
    _row("-sm --split-mode", "tensor_parallel_size pipeline_parallel_size"),
    _row("-ts --tensor-split", "", _PARTS),
    _row("-mg --main-gpu", "", _SEEN),
    _row("-fit --fit", "", "the KV cache takes what is free; leave it out"),
    _row("-fa --flash-attn", "attention_backend", "auto takes the fastest"),
    _row("-ctk --cache-type-k -ctv --cache-type-v", "kv_cache_dtype"),
    _row("-kvo --kv-offload -nkvo --no-kv-offload", "", "the KV cache is always on the device"),
    _row("-kvu --kv-unified --swa-full -dt --defrag-thold", "", "the KV cache is paged"),
    _row("--mmap --no-mmap --mlock --direct-io -lm --load-mode", "", _LOADED),
    _row("--cache-prompt --no-cache-prompt", "reuse_cache", "on or off; on by default"),
    _row("--cache-reuse -cram --cache-ram", "reuse_cache", "whole blocks of a common prefix"),
    _row("-cb --cont-batching", "", ALWAYS),
    _row("--context-shift --no-context-shift --keep", "", "what does not fit is refused"),
    _row("-a --alias", "served_model_name"),
    _row("--jinja --no-jinja", "", "chat templates are always rendered with Jinja; leave it out"),
    _row("--chat-template-file", "chat_template", "takes the file"),
    _row("--chat-template-kwargs", "", "each request says it as `chat_template_kwargs`"),
    _row("--reasoning-format", "reasoning_parser reasoning_field"),
    _row("--reasoning-budget", "", "each request says it as `thinking_token_budget`"),
    _row("-rea --reasoning --think", "", "each request says it as `enable_thinking`"),
    _row("--reasoning-effort", "", "each request says it as `reasoning_effort`"),
    _row("-md --model-draft --spec-draft-model", "speculative_model", "--speculative draft-model"),
    _row("--draft --draft-n --draft-max --spec-draft-n-max", "num_speculative_tokens"),
    _row("--draft-min --draft-p-min --spec-draft-p-min", "speculative_adaptive"),
    _row("--spec-type", "speculative"),
    _row("-lcs --lookup-cache-static -lcd --lookup-cache-dynamic", "speculative", "ngram"),
    _row("--metrics", "", "always on here: GET /metrics"),
    _row("--slots --no-slots --props", "", "GET /load, /server_info and /metrics are always there"),
    _row("--no-webui --no-ui", "page", "off"),
    _row("--webui --ui", "page", "on by default"),
    _row("--ssl-key-file", "ssl_keyfile"),
    _row("--ssl-cert-file", "ssl_certfile"),
    _row("-to --timeout", "stream_stall_timeout keep_alive_timeout", "docs/serving.md, Limits"),
    _row("--threads-http", "", "one process answers all requests; leave it out"),
    _row("-v --verbose --log-verbose", "log_level", "debug"),
    _row("-lv --verbosity --log-verbosity", "log_level"),
    _row("--log-disable", "log_level access_log", "error, and off"),
    _row("--log-jsonl", "log_format", "json"),
    _row("--log-file", "", "the log goes to standard error; redirect it with 2>FILE"),
    _row("--log-colors --log-prefix --log-timestamps", "log_format"),
    _row("--version", "", "run `rtp-llm --version`"),
    _row("--warmup --no-warmup", "", "a trial step is always run; leave it out"),
    _row("--check-tensors", "", "values are not looked at; NaN in logits fails the request"),
    _row("--lora --lora-scaled --lora-init-without-apply", "", f"LoRA is {NOT_YET}"),
    _row("--control-vector --control-vector-scaled", "", NOT_YET),
    _row("-mm --mmproj --no-mmproj", "", f"images are {NOT_YET}"),
    _row("--embedding --embeddings", "task", "embed; --embedding is taken, too"),
    _row("--rerank --reranking", "task", "score; --rerank is taken, too"),
    _row("--pooling", "", "the files of the model's folder say how its states are pooled"),
    _row("--override-kv", "", "change the model folder's config.json instead"),
    _row("--rope-scale --rope-freq-base --rope-freq-scale", "", ROPE),
    _row("--yarn-orig-ctx --yarn-ext-factor --yarn-attn-factor", "", ROPE),
    _row("--yarn-beta-slow --yarn-beta-fast", "", ROPE),
    _row("-s", "seed"),
    _row("--predict --n-predict", "", _field("max_tokens")),
    _row("--temp --temperature", "", _field("temperature")),
    _row("--top-k", "", _field("top_k")),
    _row("--top-p", "", _field("top_p")),
    _row("--min-p", "", _field("min_p")),
    _row("--repeat-penalty", "", _field("repetition_penalty")),
    _row("--presence-penalty", "", _field("presence_penalty")),
    _row("--frequency-penalty", "", _field("frequency_penalty")),
    _row("--ignore-eos", "", _field("ignore_eos")),
    _row("-l --logit-bias", "", _field("logit_bias")),
    _row("--grammar --grammar-file", "", "each request says it as `grammar`"),
    _row("-j --json-schema -jf --json-schema-file", "", "each request says it: `response_format`"),
    _row("--reverse-prompt", "", "each request says it as `stop`"),
    _row("-sp --special", "", "each request says it as `skip_special_tokens: false`"),
    _row("--samplers --sampler-seq --sampling-seq", "", "the order of samplers is fixed"),
    _row("--typical --typical-p", "", _field("typical_p")),
    _row("--top-nsigma --top-n-sigma", "", _SAMPLER),
    _row("--xtc-probability --xtc-threshold --dynatemp-range --dynatemp-exp", "", _SAMPLER),
    _row("--mirostat --mirostat-lr --mirostat-ent", "", _SAMPLER),
    _row("--dry-multiplier --dry-base --dry-allowed-length", "", _SAMPLER),
    _row("--repeat-last-n", "", "penalties count the whole sequence"),
    _row("--spm-infill", "", "the tokenizer's family decides the order; leave it out"),
    _row("--keepalive", "", "a served model stays loaded; leave it out"),
    _row("--format", "", "each request says it: `format` of /api/chat, `response_format`"),
    _row("--hidethinking", "", "each request says it as `include_reasoning: false`"),
    _row("--nowordwrap --insecure", "", "there is no such thing here; leave it out"),
)
