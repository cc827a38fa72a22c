# SPDX-License-Identifier: Apache-2.0
"""Fill in the middle: a prompt of what comes before and after the answer, for models of code.

The families differ in the names of three tokens and in what comes first; a model belongs to the
one with tokens that its vocabulary has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rtp_llm.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class _Family:
    """Names of tokens. `middle`: empty where the answer follows the prefix at once.

    `suffix_first`: the suffix comes before the prefix; `ends`: end an answer, where they are there;
    `file`, `repository`: begin another file, and the name of the repository.
    """

    prefix: str
    suffix: str
    middle: str
    suffix_first: bool = False
    ends: tuple[str, ...] = ()
    file: str = ""
    repository: str = ""


_FAMILIES = (
    _Family(  # Qwen2.5-Coder, Qwen3-Coder, CodeGemma, Granite 4
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        ends=("<|fim_pad|>", "<|endoftext|>", "<|file_separator|>"),
        file="<|file_sep|>",
        repository="<|repo_name|>",
    ),
    _Family(  # StarCoder, StarCoder 2, Granite Code, Stable Code
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        ends=("<fim_pad>", "<|endoftext|>"),
        file="<file_sep>",
        repository="<repo_name>",
    ),
    _Family("<fim-prefix>", "<fim-suffix>", "<fim-middle>", ends=("<fim-pad>", "<|endoftext|>")),
    _Family("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
    _Family("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM-4
    _Family("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", suffix_first=True),  # Seed-Coder
    _Family("▁<PRE>", "▁<SUF>", "▁<MID>", ends=("▁<EOT>",)),  # CodeLlama
    _Family("[PREFIX]", "[SUFFIX]", "", suffix_first=True, ends=("[MIDDLE]",)),  # Codestral
)


@dataclass(frozen=True)
class FillInMiddle:
    """The token ids of one model; -1 for `middle`, `file` and `repository` that it has not.

    `ends`: ids that end an answer besides the model's own.
    """

    prefix: int
    suffix: int
    middle: int
    suffix_first: bool
    ends: tuple[int, ...]
    file: int
    repository: int

    def prompt(self, prefix: Sequence[int], suffix: Sequence[int]) -> list[int]:
        """Return the ids of a prompt for the text between `prefix` and `suffix`."""
        before, after = [self.prefix, *prefix], [self.suffix, *suffix]
        parts = [*after, *before] if self.suffix_first else [*before, *after]
        return [*parts, self.middle] if self.middle >= 0 else parts


def fill_in_middle(tokenizer: Tokenizer, vocab_size: int) -> FillInMiddle | None:
    """How this model is asked to fill in the middle; None: its vocabulary has no tokens for it.

    `vocab_size`: rows of the model; tokens beyond them do not count.
    """

    def find(name: str) -> int:
        found = tokenizer.convert_tokens_to_ids(name) if name else None
        return found if found is not None and found < vocab_size else -1

    for family in _FAMILIES:
        prefix, suffix, middle = map(find, (family.prefix, family.suffix, family.middle))
        if min(prefix, suffix) < 0 or (family.middle and middle < 0):
            continue
        file, repository = find(family.file), find(family.repository)
        own = {prefix, suffix, middle, file, repository, *map(find, family.ends)} - {-1}
        return FillInMiddle(
            prefix, suffix, middle, family.suffix_first, tuple(sorted(own)), file, repository
        )
    return None
