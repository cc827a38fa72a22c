# SPDX-License-Identifier: Apache-2.0
"""Device capabilities, by which kernels and backends are chosen, never by the device name."""

from __future__ import annotations

from dataclasses import dataclass

FEATURES: dict[str, str] = {
    "mma": "warp-wide matrix products and asynchronous copies into shared memory",
    "wgmma": "matrix products of warp groups from shared memory, which a copy engine fills",
    "float8_conversion": "conversion between 8-bit floats and the type of the activations",
    "triton": "Triton kernels, with tiles that were chosen and tested there",
    "head_products": "`linear` with a weight for each head, whose rows do not depend on the batch",
    "one_pass_rotation": "rotation and cache write in one pass, worth it where a launch costs",
}


@dataclass(frozen=True)
class Capabilities:
    """The capabilities of one device's kernels.

    Args:
        name: our name of the device, for messages.
        torch_type: torch's device type of its tensors.
        features: keys of FEATURES; ``feature in capabilities`` asks for one.
        max_head_dim: the widest head that paged attention takes; None: any.
        architecture: the compiler's name of the processor, such as sm_90, for libraries that were
            measured on specific ones. "": none, or unknown.
    """

    name: str
    torch_type: str
    features: frozenset[str] = frozenset()
    max_head_dim: int | None = None
    architecture: str = ""

    def __contains__(self, feature: str) -> bool:
        assert feature in FEATURES, feature
        return feature in self.features

    def __str__(self) -> str:
        return self.name


HOST = Capabilities("cpu", "cpu", frozenset(("head_products",)))
