# SPDX-License-Identifier: Apache-2.0
"""Many prompts that are pooled for one request, as one message."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import msgspec

from rtp_llm.request.params import PoolingParams


class AddPrompts(msgspec.Struct, tag="add_prompts", frozen=True, kw_only=True):
    """Start a request that pools N prompts; its only sequence ends when all of them have.

    Its one delta has what is pooled, prompt after prompt in this order. ``lengths`` (int32 [N]) and
    ``token_ids`` (int32, the prompts one after the other) are raw bytes. The other fields are those
    of AddRequest, and hold for each prompt. ``second_texts`` (int32 [N], or empty for zeros): see
    AddRequest.second_text.
    """

    request_id: int
    lengths: bytes
    token_ids: bytes
    params: PoolingParams
    extra_key: str = ""
    number: int = 0
    tenant: str = ""
    tenant_weight: float = 1.0
    second_texts: bytes = b""

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return len(self.token_ids) // 4

    def prompts(self) -> Iterator[list[int]]:
        """The token ids of each prompt."""
        ids, first = memoryview(self.token_ids).cast("i"), 0
        for length in memoryview(self.lengths).cast("i"):
            yield ids[first : first + length].tolist()
            first += length

    def second_text(self, place: int) -> int:
        """That of the prompt at ``place``."""
        return memoryview(self.second_texts).cast("i")[place] if self.second_texts else 0


def int32_bytes(numbers: list[int]) -> bytes:
    """Numbers as a column of a message."""
    return array("i", numbers).tobytes()
