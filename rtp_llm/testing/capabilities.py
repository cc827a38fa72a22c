# SPDX-License-Identifier: Apache-2.0
"""Capabilities of devices that the test machine need not have."""

from __future__ import annotations

from rtp_llm.device.capabilities import Capabilities
from rtp_llm.device.cuda import capabilities_of
from rtp_llm.device.rocm import RocmDevice
from rtp_llm.device.xpu import XpuDevice

AMPERE, ADA, HOPPER, BLACKWELL = map(capabilities_of, ((8, 0), (8, 9), (9, 0), (10, 0)))
ROCM = Capabilities("rocm", "cuda", RocmDevice.kernel_features, RocmDevice.max_head_dim)
XPU = Capabilities("xpu", "xpu", XpuDevice.kernel_features, XpuDevice.max_head_dim)

# Every operator with a SYCL kernel, as rtp_llm/kernels/xpu/table_test.py makes sure.
XPU_KERNELS = frozenset(
    (
        "accept_drafts",
        "add_logit_bias",
        "add_sigmoid_gated",
        "append_accepted",
        "apply_penalties",
        "apply_token_bitmask",
        "ban_repeated_ngrams",
        "bert_embedding",
        "causal_conv1d",
        "choose_beams",
        "copy_blocks",
        "correct_positions",
        "embedding",
        "fake_balance_expert",
        "fp8_weight_linear",
        "fused_add_layer_norm",
        "fused_add_rms_norm",
        "gated_delta_rule",
        "gated_rms_norm",
        "gelu",
        "gelu_and_mul",
        "gguf_embedding",
        "gguf_grouped_linear",
        "gguf_interleave",
        "gguf_linear",
        "group_topk",
        "grouped_linear",
        "int8_linear",
        "layer_norm",
        "linear",
        "match_ngrams",
        "mla_attention",
        "mla_rotate_and_store",
        "mxfp4_grouped_linear",
        "order_beams",
        "paged_attention",
        "qk_rms_norm",
        "rejection_sample",
        "rms_norm",
        "rope_kv_write",
        "sample",
        "select_beams",
        "select_topk",
        "sigmoid_gate",
        "silu_and_mul",
        "sort_by_expert",
        "substitute_tokens",
        "sum_experts",
        "table4_grouped_linear",
        "top_logprobs",
        "varlen_attention",
        "w8a8_int8_linear",
        "wna16_grouped_linear",
        "wna16_linear",
    )
)
