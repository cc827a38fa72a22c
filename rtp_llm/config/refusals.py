# SPDX-License-Identifier: Apache-2.0
"""The table of what is refused, with the reason and what to change.

Rows of area "request" are fields or values of an HTTP request (answered with 400), those of
"completion" only of /v1/completions; other areas are refused at start-up by the code that reads the
model or the settings. The page is written by
`python -m rtp_llm.config.refusals > docs/refusals.md`.
"""

from __future__ import annotations

import sys

from rtp_llm.config.rank_refusals import RANK_REFUSALS
from rtp_llm.config.refusal import Refusal

_LEAVE_OUT = "Leave the field out."
_GPUS = "cuda, rocm, xpu"
_NO_THINKING = "The form of the model's thinking is not known."
_SET_REASONING = "Leave it out, or set --reasoning-parser."
_CHAT_ONLY = "It belongs to a conversation."
_TO_CHAT = "Send it to /v1/chat/completions."

REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "request",
        "tools",
        "The form of the model's tool calls is not known.",
        "Set --tool-call-parser, or serve a model whose chat template has tools.",
    ),
    Refusal(
        "request",
        "messages.content",
        "Only text parts are understood; images, audio, video and files are not.",
        "Send parts of type text.",
    ),
    Refusal(
        "request",
        "tool results",
        "Only text can be read in results of tools, and --lenient-media is off.",
        "Send parts of type text, or start the server with --lenient-media.",
    ),
    Refusal("request", "modalities", "Only text is produced.", 'Send ["text"] or leave it out.'),
    Refusal("request", "audio", "Only text is produced.", _LEAVE_OUT),
    Refusal("request", "prediction", "Predicted output is not used.", _LEAVE_OUT),
    Refusal("request", "web_search_options", "The server does not search the web.", _LEAVE_OUT),
    Refusal(
        "request",
        "reasoning_effort",
        _NO_THINKING + " Nor does its chat template name it.",
        _SET_REASONING,
    ),
    Refusal(
        "request",
        "chat_template",
        "Templates are programs, and those of requests run only where clients are trusted.",
        "Leave the field out, or start the server with --trust-request-chat-template.",
    ),
    Refusal(
        "request",
        "verbosity",
        "Local models have no such control.",
        "Leave the field out and say it in the prompt.",
    ),
    Refusal(
        "request",
        "suffix",
        "Nothing follows the answer of a chat.",
        "Send it to /v1/completions, or leave the field out.",
    ),
    Refusal(
        "request",
        "best_of",
        "Candidates are not ranked by the server.",
        "Leave it out, or send the same value as n.",
    ),
    Refusal("request", "use_beam_search", "There is no beam search yet.", _LEAVE_OUT),
    Refusal("request", "beam_width", "There is no beam search yet.", _LEAVE_OUT),
    Refusal("request", "length_penalty", "There is no beam search yet.", _LEAVE_OUT),
    Refusal("request", "early_stopping", "There is no beam search yet.", _LEAVE_OUT),
    Refusal("request", "logits_processors", "Requests bring no code.", _LEAVE_OUT),
    Refusal("request", "custom_logit_processor", "Requests bring no code.", _LEAVE_OUT),
    Refusal("request", "lora_path", "Adapters (LoRA) cannot be applied yet.", _LEAVE_OUT),
    Refusal("request", "prompt_embeds", "Prompts are texts or token ids.", _LEAVE_OUT),
    Refusal("request", "return_hidden_states", "Hidden states are not given out.", _LEAVE_OUT),
    Refusal(
        "request",
        "documents",
        "The model's chat template does not read them.",
        "Leave the field out and put the documents into a message.",
    ),
    Refusal(
        "request",
        "kv_transfer_params",
        "Prompts are computed elsewhere by --role, not by fields of requests.",
        _LEAVE_OUT,
    ),
    Refusal(
        "request",
        "enable_thinking",
        _NO_THINKING + " Nor does its chat template name it.",
        _SET_REASONING,
    ),
    Refusal(
        "request",
        "repeat_penalty",
        "It is another engine's name.",
        "Send repetition_penalty.",
    ),
    Refusal("request", "max_new_tokens", "It is another API's name.", "Send max_tokens."),
    Refusal("request", "thinking_budget", _NO_THINKING, _SET_REASONING),
    Refusal(
        "completion",
        "suffix",
        "The model's tokenizer has no tokens to fill in the middle: for the prefix, the suffix and "
        "the middle.",
        "Leave the field out, or serve a model of code that has them.",
    ),
    *(
        Refusal("completion", name, _CHAT_ONLY, _TO_CHAT)
        for name in (
            "messages",
            "tools",
            "tool_choice",
            "functions",
            "function_call",
            "reasoning_effort",
            "enable_thinking",
            "thinking_budget",
            "thinking_token_budget",
        )
    ),
    *(
        Refusal("responses", name, reason, _LEAVE_OUT)
        for name, reason in (
            ("prompt", "No prompts are stored here."),
            ("conversation", "No conversations are stored here, only responses."),
            ("context_management", "Nothing is left out of a conversation by itself."),
            ("moderation", "There is no moderation model here."),
        )
    ),
    Refusal("request", "mirostat", "This sampling method is not implemented.", _LEAVE_OUT),
    Refusal(
        "model",
        "unknown architecture",
        "Its layers are not implemented.",
        "Choose a model of a supported architecture; the error lists them, the nearest first.",
    ),
    Refusal(
        "model",
        "quantized checkpoint",
        "Of the quantised formats only FP8 blocks (quant_method fp8) can be read.",
        "Take the model's unquantised weights; --quantization quantises them while loading.",
    ),
    Refusal(
        "model",
        "FP8 checkpoint without block scales",
        "FP8 weights are read with a scale for every block, and activations get theirs as they "
        "come; scales for whole tensors and stored scales of activations are not read.",
        "Take the model's FP8 weights in blocks of 128 x 128, or its unquantised ones.",
    ),
    Refusal(
        "model",
        "FP8 checkpoint of other blocks",
        "The kernels multiply e4m3 numbers in blocks of 128 x 128.",
        "Take the model's unquantised weights; --quantization fp8 quantises them while loading.",
    ),
    Refusal(
        "model",
        "FP8 blocks of several parts",
        "A block of 128 rows has one scale; heads that are no multiples of 128 wide share blocks "
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
    Refusal(
        "model",
        "tensor parallelism of experts with settings of their own",
        "Tensor-parallel ranks divide the experts once and for all; only engines of one rank each "
        "balance them, have copies of them, or fake their balance.",
        "Set --tensor-parallel-size to 1, or leave settings of balancing out.",
    ),
    Refusal(
        "model",
        "8-bit floats without blocks",
        "Nothing says how they were scaled.",
        "Restore quantization_config in config.json, or take the model's unquantised weights.",
    ),
    Refusal(
        "model",
        "quantized twice",
        "The weights are stored in FP8; rounding them again would add its error to theirs.",
        "Leave --quantization out, or take the model's unquantised weights.",
    ),
    Refusal(
        "model",
        "settings of FP8 products without any",
        "Neither the model's weights are FP8 nor are they made so, and nothing else reads them.",
        "Leave --deep-gemm-* out, or set --quantization fp8.",
    ),
    Refusal(
        "model",
        "fp8 with another dtype",
        "FP8 products give bfloat16.",
        "Set --dtype bfloat16, or leave --quantization out.",
    ),
    Refusal(
        "model",
        "mixture of experts",
        "This architecture chooses or computes its experts in a way that is not known.",
        "Choose a model of docs/moe.md, or a dense one.",
    ),
    Refusal(
        "model",
        "multimodal model",
        "Only text is understood.",
        "Choose a text model, or the language part of this one saved on its own.",
    ),
    Refusal(
        "model",
        "encoder-decoder model",
        "Only decoders are implemented.",
        "Choose a decoder-only model.",
    ),
    Refusal(
        "model",
        "other rope type",
        "The rotary embedding may be default, linear, dynamic, llama3 or yarn.",
        "Choose a model with one of these.",
    ),
    Refusal(
        "model",
        "rope per layer type",
        "All layers share one rotary table.",
        "Choose a model with one rope setting for all layers.",
    ),
    Refusal(
        "model",
        "partial rotary embedding",
        "This architecture is known to rotate whole heads; Qwen3-Next and Qwen3.5 rotate a part.",
        "Choose a model without partial_rotary_factor, or one of these.",
    ),
    Refusal(
        "model",
        "dual chunk attention",
        "There is no attention backend for it.",
        "Choose the model of the same family without dual_chunk_attention_config.",
    ),
    Refusal(
        "model",
        "soft-capped logits",
        "The known architectures do not cap their logits.",
        "Choose a model without the softcapping keys.",
    ),
    Refusal(
        "model",
        "other activation",
        "The feed-forward kernels know silu and gelu, exact and by tanh.",
        "Choose a model with one of them.",
    ),
    Refusal(
        "model",
        "other layer type",
        "Layers have full or sliding-window attention; those of Qwen3-Next and Qwen3.5 full or "
        "linear attention.",
        "Choose a model without other layer types.",
    ),
    Refusal(
        "model",
        "other number type",
        "Weights are read from float32, bfloat16, float16 or float64 and kept in the first three.",
        "Convert the checkpoint to one of them.",
    ),
    Refusal(
        "model",
        "adapter folder",
        "Adapters (LoRA) cannot be applied yet.",
        "Merge the adapter into its base model and serve the result.",
    ),
    Refusal(
        "model",
        "no layer of multi-token prediction",
        "With --speculative mtp the model drafts by one layer that it was trained with (mtp).",
        "Choose another --speculative, or a model that has such a layer.",
    ),
    Refusal(
        "model",
        "draft model of another kind",
        "With --speculative eagle3 --speculative-model has an EAGLE-3 head of one Llama layer, for "
        "the model's vocabulary, as LlamaForCausalLMEagle3 with draft_vocab_size.",
        "Choose a head that was trained for this model, or another --speculative.",
    ),
    Refusal(
        "model",
        "draft model of another vocabulary",
        "With --speculative draft-model both models have the same tokens under the same numbers.",
        "Choose a draft model of the same family, with the same vocab_size and tokenizer, or "
        "another --speculative.",
    ),
    Refusal(
        "model",
        "draft model with recurrent layers",
        "Gated delta net states in a draft model cannot be rolled back after drafts are rejected.",
        "Choose a draft model that has attention in all layers, or another --speculative.",
    ),
    Refusal(
        "speculation",
        "speculative decoding of more drafts than recurrent states go back",
        "The state of a gated delta net can go back 7 tokens, others none.",
        "Set --num-speculative-tokens 7 or less.",
    ),
    Refusal(
        "speculation",
        "--draft-sample-method probabilistic without a model that drafts",
        "N-grams and suffix trees give tokens, and no distribution that these are sampled from.",
        "Leave it out, or set --speculative to mtp, eagle3 or draft-model.",
    ),
    Refusal(
        "model",
        "weights that are not safetensors",
        "Only safetensors files are read.",
        "Convert them once with transformers: "
        "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder).",
    ),
    Refusal(
        "device",
        "device_type",
        "It has no kernels and no wheel.",
        "Set --device-type to auto, cuda, rocm, xpu or cpu.",
        devices="yitian, armcpu, ppu",
    ),
    Refusal(
        "device",
        "compute capability below 8.0",
        "The kernels are compiled for 8.0 and newer.",
        "Set --device-type to cpu.",
        devices="cuda",
    ),
    Refusal(
        "device",
        "GPU without compiled kernels",
        "The wheel's kernels were compiled for other processors.",
        "Build it with --//arch_config:cuda_arch or gfx_target for this one.",
        devices="cuda, rocm",
    ),
    Refusal(
        "device",
        "--draft-sample-method probabilistic",
        "Rejection sampling has no kernel for it.",
        "Leave it out: drafts are the most likely tokens then.",
        devices="xpu",
    ),
    Refusal(
        "device",
        "operator without a kernel",
        "Its PyTorch reference is slow, so it does not run by default.",
        "Allow it with --allow-reference-ops.",
        devices=_GPUS,
    ),
    Refusal(
        "device",
        "mixtures of experts",
        "The sorting and the products of experts have no kernels there.",
        "Allow the slow PyTorch references with --allow-reference-ops, or choose a dense model.",
        devices="xpu",
    ),
    Refusal(
        "device",
        "multi-head latent attention",
        "Multi-head latent attention (MLA) has kernels for the CPU and for NVIDIA GPUs only.",
        "Choose a model without MLA, or set --device-type to cpu.",
        devices="rocm, xpu",
    ),
    Refusal(
        "device",
        "int8_weights",
        "Int8 weights have kernels for the CPU and for NVIDIA's GPUs only.",
        "Leave --quantization out.",
        devices="rocm, xpu",
    ),
    Refusal(
        "device",
        "int8_products",
        "Int8 products have kernels for the CPU and for NVIDIA's GPUs only.",
        "Leave --quantization out.",
        devices="rocm, xpu",
    ),
    Refusal(
        "device",
        "fp8_products",
        "There are no kernels for FP8 products; FP8 weights are dequantised.",
        "Leave --quantization and --deep-gemm-* out; int8 instead where that is supported.",
        devices="cpu, rocm, xpu",
    ),
    Refusal(
        "device",
        "fp8_products on another GPU",
        "The FP8 kernels need compute capability 9.0.",
        "Leave --quantization and --deep-gemm-* out, or set int8; FP8 weights become floats.",
        devices="cuda",
    ),
    Refusal(
        "device",
        "quantized_kv_cache",
        "The kernels keep the KV cache in the type of the activations.",
        "Leave --kv-cache-dtype out, or choose a smaller type with --dtype.",
        devices="cpu, rocm, xpu",
    ),
    Refusal(
        "device",
        "graph_capture",
        "A CPU step has no launch queue to capture; it runs eagerly.",
        "Nothing needs to be set.",
        devices="cpu",
    ),
    Refusal(
        "device",
        "graph_capture",
        "SYCL graphs are not used yet; steps run eagerly.",
        "Nothing needs to be set.",
        devices="xpu",
    ),
    Refusal(
        "device",
        "pinned_memory",
        "Host memory is the device's memory; nothing is copied.",
        "Nothing needs to be set.",
        devices="cpu",
    ),
    Refusal(
        "device",
        "tensor_parallel",
        "One model over several devices has not been tried there.",
        "Leave --tensor-parallel-size and --pipeline-parallel-size out; --data-parallel-size "
        "divides requests and experts.",
        devices="rocm, xpu",
    ),
    *RANK_REFUSALS,
    Refusal(
        "device",
        "--reserve-runtime-mem-mb",
        "The KV cache has a size of its own, not what steps leave of the device.",
        "Leave it out; --kv-cache-mem-mb sets that size.",
        devices="cpu",
    ),
    Refusal(
        "disaggregation",
        "--cache-store-mem-mb",
        "Blocks are fetched from the KV cache itself; no other memory holds them.",
        "Leave it out; --kv-cache-mem-mb says how much may wait to be fetched.",
        devices="cpu",
    ),
    Refusal(
        "disaggregation",
        "--kv-transport mooncake",
        "It reads a GPU's memory by RDMA devices with GPUDirect only, where it was never tried.",
        "Leave it out: blocks travel over TCP; or take nixl with NVIDIA's GPUs.",
        devices=_GPUS,
    ),
    Refusal(
        "disaggregation",
        "--cache-store-mem-mb with --kv-transport nixl",
        "Blocks go from one KV cache into the other; no host memory holds them.",
        "Leave --cache-store-mem-mb out.",
        devices="cuda",
    ),
    Refusal(
        "disaggregation",
        "recurrent states of workers with unequal --tensor-parallel-size",
        "A state is one piece, which no load takes apart.",
        "Start both with as many tensor-parallel ranks.",
    ),
    Refusal(
        "device",
        "memory_export",
        "NIXL's packages read the memory of the host and of NVIDIA's GPUs only.",
        "Leave --kv-transport out: blocks travel over TCP.",
        devices="rocm, xpu",
    ),
    Refusal(
        "device",
        "memory_export from another allocator",
        "Other processes can open memory from cudaMalloc only.",
        "Take expandable_segments and backend out of PYTORCH_ALLOC_CONF, or leave --kv-transport "
        "out.",
        devices="cuda",
    ),
)


def find_refusal(area: str, name: str, device: str = "all") -> Refusal | None:
    """The row of `name` in `area` on `device`, if there is one."""
    return _INDEX.get((area, name, device))


def get_refusal(area: str, name: str, device: str = "all") -> Refusal:
    """The row of `name` in `area` on `device`; raises KeyError when the table has none."""
    return _INDEX[area, name, device]


_INDEX = {(row.area, row.name, device): row for row in REFUSALS for device in row.device_names}

_INTRODUCTION = """# What is refused

<!-- Written by `python -m rtp_llm.config.refusals`; do not edit. -->

Nothing that would change the result is ignored silently. What is not supported is refused with its
reason: a field of a request with 400, a model or a setting at start-up.

| where | what | devices | reason | what to do |
|---|---|---|---|---|
"""


def render() -> str:
    """The page docs/refusals.md."""
    cells = ((r.area, f"`{r.name}`", r.devices, r.reason, r.change) for r in REFUSALS)
    return _INTRODUCTION + "".join(f"| {' | '.join(row)} |\n" for row in cells)


if __name__ == "__main__":
    sys.stdout.write(render())
