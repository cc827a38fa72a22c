# SPDX-License-Identifier: Apache-2.0
"""What two workers must have in common to exchange blocks, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtp_llm.attention import CacheGroups
    from rtp_llm.models.config import ModelConfig


def fingerprint(
    config: ModelConfig,
    groups: CacheGroups,
    block_size: int,
    *,
    weights: str,
    quantization: str,
    content: str,
    speculative: str = "none",
    ranks: int = 1,
) -> str:
    """What must be equal for blocks of one worker to mean the same in another one.

    ``groups`` are those of one rank alone, ``weights`` is the number type of weights, ``content``
    their digest, ``speculative`` what drafts with keys and values of its own. The number of
    tensor-parallel ``ranks`` matters to recurrent states alone, which no load takes apart. Each
    name has its remedy in rtp_llm.disagg.wire.differences.
    """
    specs = [group.spec for group in groups.groups if group.spec.kind != "recurrent"]
    dtypes = dict.fromkeys(str(spec.memory_dtype).removeprefix("torch.") for spec in specs)
    identities = " ".join(f"group{g}={group.identity}" for g, group in enumerate(groups.groups))
    tensor = "any" if groups.rollback is None else ranks
    return (
        f"{config.architecture} speculative={speculative} "
        f"layers={len(groups.specs)} vocabulary={config.vocab_size} "
        f"dtype={','.join(dtypes)} block_size={block_size} {identities} tp={tensor} "
        f"weights={weights} quantization={quantization} content={content}"
    )
