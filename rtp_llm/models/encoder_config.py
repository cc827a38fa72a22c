# SPDX-License-Identifier: Apache-2.0
"""What encoders have in addition to, or instead of, the config of a decoder."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EncoderConfig:
    """`longest`: the tokens for which it has positions. `position_rows` and `type_rows` are those
    of learned positions and token types, 0: none; the first token has row `first_position`.

    `norm_bias`: norms have biases. `scale` multiplies products of queries and keys.
    `position_buckets`: relative positions share so many biases of scores; 0: none. `head_bias`: of
    the first layer of the head of a classifier.
    """

    longest: int
    scale: float
    norm_bias: bool = True
    position_rows: int = 0
    first_position: int = 0
    type_rows: int = 0
    position_buckets: int = 0
    head_bias: bool = True
