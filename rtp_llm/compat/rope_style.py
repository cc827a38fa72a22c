# SPDX-License-Identifier: Apache-2.0
"""The reference's description of a rotary embedding, and its translation to our tables."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from rtp_llm.ops.rope.rotary_table import RopeConfig


class RopeStyle(IntEnum):
    """Which channels are rotated, and with which frequencies."""

    No = 0
    Base = 1
    Glm2 = 2
    DynamicNTK = 3
    QwenDynamicNTK = 4
    Yarn = 5
    Llama3 = 6
    Mrope = 7


@dataclass(frozen=True)
class RopeSettings:
    """The reference's RopeConfig; raises ValueError for settings that no kernel supports.

    `factor1` and `factor2` are beta_slow and beta_fast for Yarn, the low and high frequency factors
    for Llama3. `mrope_dim1/2/3` are the numbers of pairs rotated by time, height and width.
    """

    style: RopeStyle = RopeStyle.No
    dim: int = 0
    base: float = 10000.0
    scale: float = 1.0
    factor1: float = 1.0
    factor2: float = 1.0
    max_pos: int = 0
    extrapolation_factor: float = 1.0
    mscale: float = 1.0
    offset: int = 0
    index_factor: int = 1
    mrope_dim1: int = 0
    mrope_dim2: int = 0
    mrope_dim3: int = 0
    mrope_interleaved: bool = False
    is_neox_style: bool = True

    def __post_init__(self) -> None:
        if self.style != RopeStyle.No and (self.dim <= 0 or self.dim % 2 or self.offset < 0):
            raise ValueError(
                f"rope dim is {self.dim} and offset {self.offset}; expected a positive even dim "
                "and an offset that is not negative"
            )
        if self.style == RopeStyle.Glm2 and self.dim % 4:
            raise ValueError(f"rope dim is {self.dim}; Glm2 turns half of it in pairs")
        if self.style == RopeStyle.Mrope:
            self._check_sections()

    def _check_sections(self) -> None:
        sections = (self.mrope_dim1, self.mrope_dim2, self.mrope_dim3)
        pairs = self.dim // 2
        if self.index_factor != 3 or min(sections) < 0 or sum(sections) != pairs:
            raise ValueError(
                f"mrope sections {sections} with index_factor {self.index_factor}; expected three "
                f"position ids per token and sections that add up to {pairs}"
            )
        if self.mrope_interleaved and (sections[1] > (pairs + 1) // 3 or sections[2] > pairs // 3):
            raise ValueError(
                f"mrope sections {sections} interleaved; expected at most {(pairs + 1) // 3} pairs "
                f"of height and {pairs // 3} of width"
            )

    @property
    def is_neox(self) -> bool:
        """Whether pairs are half the rotary dimension apart; otherwise they are adjacent."""
        return self.style != RopeStyle.Glm2 and self.is_neox_style

    def table(self) -> RopeConfig | None:
        """The config of the cosine and sine table, or None without rotation."""
        match self.style:
            case RopeStyle.No:
                return None
            case RopeStyle.Glm2:
                return RopeConfig("default", self.dim // 2, self.base)
            case RopeStyle.DynamicNTK:
                return self._relative("dynamic")
            case RopeStyle.QwenDynamicNTK:
                return self._relative("qwen_dynamic")
            case RopeStyle.Yarn:
                return self._yarn()
            case RopeStyle.Llama3:
                return self._llama3()
        if self.scale == 1.0:
            return RopeConfig("default", self.dim, self.base)
        return RopeConfig("linear", self.dim, self.base, self.scale)

    def _relative(self, style: str) -> RopeConfig:
        return RopeConfig(style, self.dim, self.base, self.scale, self.max_pos)

    def _yarn(self) -> RopeConfig:
        return RopeConfig(
            "yarn",
            self.dim,
            self.base,
            self.scale,
            self.max_pos,
            beta_slow=self.factor1,
            beta_fast=self.factor2,
            attention_factor=self.mscale,
            extrapolation_factor=self.extrapolation_factor,
        )

    def _llama3(self) -> RopeConfig:
        return RopeConfig(
            "llama3",
            self.dim,
            self.base,
            self.scale,
            self.max_pos,
            low_freq_factor=self.factor1,
            high_freq_factor=self.factor2,
        )
