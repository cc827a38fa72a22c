# SPDX-License-Identifier: Apache-2.0
"""Settings that reach the model: its loader, its layers and its attention backends."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from rtp_llm.config.options import CheckedSettings, option
from rtp_llm.config.tasks import TASKS


@dataclass(frozen=True, kw_only=True)
class ModelSettings(CheckedSettings):
    """The group of Settings for building a model, passed down to layers as one object.

    Raises SettingsError naming the field if a value is invalid.
    """

    dtype: str = option(
        "auto",
        "text",
        "model",
        "Data type of weights and activations; auto takes the one in config.json.",
        choices=("auto", "float32", "bfloat16", "float16"),
        synonyms=(("half", "float16"), ("float", "float32")),
        after="served_model_name",
    )
    task: str = option(
        "auto",
        "text",
        "model",
        "What the model is served for; auto: to generate text, or to embed if its folder has the "
        "modules.json of sentence-transformers, or all that its classification head does. score: "
        "to rerank; pooling: all but to generate. A model that only embeds loads no logits head.",
        choices=("auto", *TASKS, "pooling", "all"),
        synonyms=(("embedding", "embed"), ("rerank", "score"), ("none", "auto")),
        aliases=("--runner", "--convert"),
        constants=(("--is-embedding", "pooling"), ("--embedding", "embed"), ("--rerank", "score")),
        after="dtype",
        advanced=True,
    )
    quantization: str = option(
        "none",
        "text",
        "model",
        "Quantisation of weights done while loading: int8 is weight-only; w8a8_int8 (faster, about "
        "twice the error) and fp8 (in blocks) quantise activations, too; int4 rounds to nearest in "
        "groups of 128. Quantised checkpoints need nothing.",
        choices=("none", "int8", "w8a8_int8", "int4", "fp8"),
        after="task",
    )
    gguf_activations: str = option(
        "int8",
        "text",
        "model",
        "What activations become where they meet weights in the blocks of GGUF files: int8 gives "
        "each 32 of them a scale of their own, and takes 16 bits in down projections and logits; "
        "float keeps them, at less than half the speed.",
        choices=("int8", "float"),
        after="quantization",
        advanced=True,
    )
    load_format: str = option(
        "safetensors",
        "text",
        "model",
        "Where weights come from; dummy: random weights, to measure a shape without a checkpoint.",
        choices=("safetensors", "dummy"),
        after="gguf_activations",
    )
    max_seq_len: int | None = option(
        None,
        "integer",
        "model",
        "Longest sequence, prompt and answer together.",
        unit="tokens",
        minimum=2,
        maximum=2**30,
        automatic="the model's max_position_embeddings, or less if the KV cache holds less",
        after="load_format",
    )
    attention_backend: str = option(
        "auto",
        "text",
        "device",
        "Attention backend; auto takes the fastest for this model and device, see `rtp-llm "
        "explain`. A name forces that one for every step that it supports.",
        choices=("auto", "flashinfer", "cuda_sm90", "fp8_dequant", "triton", "paged"),
        renamed=(("hopper", "cuda_sm90"), ("widened", "fp8_dequant")),
        after="enable_graphs",
    )
    moe_strategy: str = option(
        "auto",
        "text",
        "device",
        "Executor of a mixture's experts; auto takes the best supported one, see `rtp-llm "
        "explain`. A name forces that one in every layer, or stops the start with the reason.",
        choices=("auto", "triton", "fp8", "fp8_masked", "fp8_contiguous", "fp8_channel", "plain"),
        after="attention_backend",
    )
    kv_cache_dtype: str = option(
        "auto",
        "text",
        "cache",
        "Data type of the KV cache; fp8_e4m3 holds twice as many tokens, at lower precision.",
        choices=("auto", "fp8_e4m3"),
        synonyms=(("fp8", "fp8_e4m3"),),
        after="kv_cache_mem_mb",
    )
    mamba_ssm_cache_dtype: str = option(
        "float32",
        "text",
        "cache",
        "Data type of the recurrent states of linear attention; bfloat16 takes half the memory and "
        "loses precision over long sequences. Models without such layers have none.",
        choices=("float32", "bfloat16"),
        after="kv_cache_dtype",
        advanced=True,
    )
    seq_size_per_block: int | None = option(
        None,
        "integer",
        "cache",
        "Tokens in one block of the KV cache.",
        unit="tokens",
        minimum=1,
        maximum=1024,
        automatic="16; on xpu 64, or what XPU_SEQ_SIZE_PER_BLOCK says",
        after="reserve_runtime_mem_mb",
    )

    def model_settings(self) -> ModelSettings:
        """Return these fields only; `self` may be a full Settings object."""
        names = (field.name for field in dataclasses.fields(ModelSettings))
        return ModelSettings(**{name: getattr(self, name) for name in names})
