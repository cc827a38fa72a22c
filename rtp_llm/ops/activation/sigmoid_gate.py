"""The output gate of attention, as in Qwen3-Next."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import MutableTensor, operator


@operator
def sigmoid_gate(x: MutableTensor, gate: Tensor) -> None:
    """In place: x *= sigmoid(gate), in float32 and rounded once.

    x and gate of one shape and dtype, float32, bfloat16 or float16: [T, C] with free row strides,
    or [T, H, D] with free strides of tokens and heads; in different memory. RuntimeError on a
    mismatch.
    """
