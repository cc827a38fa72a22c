# SPDX-License-Identifier: Apache-2.0
"""Capture sizes: the batches for which graphs are captured, the most worthwhile first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_PROMPT_TOKENS = (16, 32, 64, 128, 192, 256, 384, 512, 768, 1024)
# If tokens times bytes of weights per layer exceed this, a step computes for longer than the host
# takes to launch it, so a graph gains nothing and its padding costs: 256 tokens of an 8B model of
# 36 layers.
_LAYER_WORK = 4e12 / 36
# Of several ranks the slowest host holds up all: prompts of 128 tokens of llama-70b on two H200s
# often waited for one of them. Larger ones compute for longer, and padding costs them more.
_RANKS_WORK = 1.5
_WORTH_IT = 64  # tokens for which any model reads its weights for longer than it computes
# Steps of an encoder, of whole prompts only, take the host as long to launch, but compute for less
# time than those of decoders of a GPU's size.
_ENCODER_TOKENS = (*_PROMPT_TOKENS, 1536, 2048, 3072, 4096)
# A prompt alone, or one that joins sequences that decode.
_PROMPT_SEQUENCES = (4, 64)
# Few or many prompts of an encoder; so many that most have this many tokens at least.
_ENCODER_SEQUENCES = (4, 64, 256)
_SHORT_PROMPT = 4
# A padded step computes at most this multiple of its tokens, otherwise it runs eagerly; but the
# smallest tiles of tensor cores have 16 rows anyway.
_MAX_PADDING = 2
_LEAST_ROWS = 16


@dataclass(frozen=True, order=True)
class GraphSize:
    """``tokens`` of ``sequences``, none of which has more than ``longest``."""

    tokens: int
    sequences: int
    longest: int

    def holds(self, tokens: int, sequences: int, longest: int) -> bool:
        """Whether a step of this size can run a batch of these numbers."""
        return tokens <= self.tokens and sequences <= self.sequences and longest <= self.longest

    def is_for_rows(self, queries: int) -> bool:
        """Whether it is a size of steps that only decode or verify, with up to ``queries`` tokens
        per sequence: one of `decode_sizes` or `verify_sizes`."""
        return self.longest <= queries and self.tokens == self.sequences * self.longest

    def pays_for(self, tokens: int) -> bool:
        """Whether a batch of so many tokens runs in this size rather than eagerly.

        Decode steps always do: they read the same weights, and a larger size stands in for one
        that is not captured yet.
        """
        return self.longest == 1 or self.tokens <= max(_LEAST_ROWS, _MAX_PADDING * tokens)


def launch_work(layers: int, several_ranks: bool) -> float:
    """Tokens times bytes of weights up to which steps of a rank's ``layers`` pay off as graphs."""
    return layers * _LAYER_WORK * (_RANKS_WORK if several_ranks else 1)


def graph_sizes(
    max_batch_tokens: int,
    max_running: int,
    weight_bytes: int,
    max_draft_tokens: int = 0,
    token_bytes: int | None = None,
    max_work: float = 36 * _LAYER_WORK,
) -> list[GraphSize]:
    """All sizes to capture: the largest batch of decoding sequences, which stands in for smaller
    ones, then a single sequence, with its drafts too, the other batches, and last the prompts.

    ``max_draft_tokens`` of a sequence in a step. ``token_bytes``: of the weights that one token is
    multiplied with, fewer than all where it goes to some experts. A step that verifies is hardly
    padded, and that padding costs the work of its tokens; a prompt may be padded to twice its size.
    ``max_work``: of `launch_work`.
    """

    decode = decode_sizes(min(max_batch_tokens, max_running))
    short = _most_tokens(max_batch_tokens, weight_bytes, max_work)
    verified = short
    if token_bytes is not None:
        verified = _most_tokens(max_batch_tokens, token_bytes, max_work)
    verify = verify_sizes(1 + max_draft_tokens, verified, max_running) if max_draft_tokens else []
    sizes = [decode.pop(), *decode[:1], *verify[:1], *decode[1:], *verify[1:]]
    return list(dict.fromkeys([*sizes, *prompt_sizes(short, max_running)]))


def encoder_sizes(
    max_batch_tokens: int,
    max_running: int,
    weight_bytes: int,
    max_model_len: int,
    max_work: float,
) -> list[GraphSize]:
    """All sizes to capture for an encoder, the largest first, whose memory the others share: so
    many tokens of whole prompts, each of which has up to ``max_model_len``."""
    most = _most_tokens(max_batch_tokens, weight_bytes, max_work)
    sizes = {
        each
        for each in _sizes_by_tokens(
            _ENCODER_TOKENS, _ENCODER_SEQUENCES, most, max_running, max_model_len
        )
        if each.sequences <= max(_PROMPT_SEQUENCES) or _SHORT_PROMPT * each.sequences <= each.tokens
    }
    return sorted(sizes, reverse=True)


def _most_tokens(max_batch_tokens: int, weight_bytes: int, max_work: float) -> int:
    """The tokens of the largest prompts for which graphs pay off."""
    return min(max_batch_tokens, max(_WORTH_IT, int(max_work / max(1, weight_bytes))))


def count_graphs(sizes: Sequence[GraphSize], max_draft_tokens: int | None) -> int:
    """The number of graphs for these sizes: one each and, if a model drafts (None: it does not),
    one more for each size of steps that only decode or verify."""
    if max_draft_tokens is None:
        return len(sizes)
    return len(sizes) + sum(size.is_for_rows(1 + max_draft_tokens) for size in sizes)


def decode_sizes(most: int) -> list[GraphSize]:
    """One token for each of 1, 2, 4, 8, 16, 24, 32 sequences, then in steps of 16, and `most`."""
    counts = {1, 2, 4, 8, 16, 24, 32, *range(48, most, 16), most}
    return [GraphSize(count, count, 1) for count in sorted(counts) if count <= most]


def verify_sizes(queries: int, most: int, max_sequences: int) -> list[GraphSize]:
    """``queries`` tokens for each sequence, with the sequences of `decode_sizes`; ``most`` in
    all."""
    if queries > most:
        return []
    batches = decode_sizes(min(max_sequences, most // queries))
    return [GraphSize(queries * each.sequences, each.sequences, queries) for each in batches]


def prompt_sizes(most: int, max_sequences: int) -> list[GraphSize]:
    """Prompts of up to ``most`` tokens, alone or among sequences that decode."""
    return sorted(_sizes_by_tokens(_PROMPT_TOKENS, _PROMPT_SEQUENCES, most, max_sequences, most))


def _sizes_by_tokens(
    buckets: Sequence[int], counts: Sequence[int], most: int, max_sequences: int, longest: int
) -> set[GraphSize]:
    """Sizes of up to ``most`` tokens, for few and for many sequences."""
    return {
        GraphSize(tokens, min(sequences, max_sequences, tokens), min(tokens, longest))
        for tokens in buckets
        for sequences in counts
        if tokens <= most
    }
