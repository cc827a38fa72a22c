# SPDX-License-Identifier: Apache-2.0
"""Refusals of weights by the format in which a checkpoint stores them."""

from __future__ import annotations

from rtp_llm.config.refusal import Refusal

FORMAT_REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "model",
        "quantized checkpoint",
        "Of the quantised formats those of docs/formats.md can be read: quant_method fp8, "
        "fbgemm_fp8, mxfp4, bitsandbytes, gptq, awq, auto-round, modelopt with FP8 or NVFP4, "
        "compressed-tensors of 8-bit floats, integers, NVFP4 and MXFP4, and MLX with 2, 4 or 8 "
        "bits.",
        "Take the model in one of these formats, or its unquantised weights; --quantization "
        "quantises them while loading.",
    ),
    Refusal(
        "model",
        "FP8 checkpoint with other scales",
        "FP8 weights are read with a scale for each block, channel or tensor, and activations get "
        "a scale for each token as they come, or in products of blocks for each 128 channels.",
        "Take the model's FP8 weights with scales of these kinds, or its unquantised ones.",
    ),
    Refusal(
        "model",
        "FP8 checkpoint of other blocks",
        "The kernels multiply e4m3 numbers in blocks of 128 x 128.",
        "Take the model's unquantised weights; --quantization fp8 quantises them while loading.",
    ),
    Refusal(
        "model",
        "stored formats that do not go together",
        "The parts of a fused layer, and all experts of a layer, are stored in one format, or some "
        "of them as floats; what is stored in FP8 is not quantised again.",
        "Take the model's unquantised weights, or leave --quantization out.",
    ),
    Refusal(
        "model",
        "dummy weights in this format",
        "Dummy weights are floats, FP8 in blocks of 128 x 128, or experts in MXFP4.",
        "Take the model's weights, or leave quantization_config out of config.json.",
    ),
    Refusal(
        "model",
        "FP8 blocks of several parts",
        "A block of 128 rows has one scale; head widths that are not multiples of 128 share blocks "
        "with the gates that lie between them.",
        "Take the model's unquantised weights, without --quantization fp8.",
    ),
    Refusal(
        "model",
        "tensor parallelism of such sizes",
        "Ranks have equal parts of heads, channels and experts, and whole blocks of FP8 weights.",
        "Set --tensor-parallel-size to a size that divides them, or take unquantised weights where "
        "blocks are in the way.",
    ),
)
