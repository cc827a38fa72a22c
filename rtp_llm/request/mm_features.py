# SPDX-License-Identifier: Apache-2.0
"""Embeddings that a request brings for some of its prompt's tokens."""

from __future__ import annotations

from typing import Literal

import msgspec

FeatureDtype = Literal["float32", "bfloat16", "float16"]
ITEM_BYTES: dict[FeatureDtype, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


class PlaceholderRange(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens [offset, offset + length) of a prompt. Their ids only hold the place."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length


class MultiModalFeature(msgspec.Struct, frozen=True, kw_only=True):
    """Embeddings of an image, a video, ...; row i replaces the embedding of token offset + i.

    ``identifier`` is a digest of what they were made of: prompts share cached blocks where their
    features have the same modality and identifier at the same place, so it must come from a
    trusted process. ``data`` is [length, width] numbers of type ``dtype``.
    """

    mm_position: PlaceholderRange
    modality: str
    identifier: str
    data: bytes
    dtype: FeatureDtype = "float32"

    @property
    def cache_key(self) -> bytes:
        """What names the content in keys of the prefix cache."""
        return f"{self.modality}\0{self.identifier}".encode()
