"""Capture sizes: batches for which graphs are made, in the order in which they are worth it."""

from __future__ import annotations

from dataclasses import dataclass

_PROMPT_TOKENS = (16, 32, 64, 128, 192, 256, 384, 512, 768, 1024)
# A step whose tokens times bytes of weights are more computes for longer than the host takes to
# launch it, so that a graph gains nothing and its padding costs: 256 tokens of an 8B model.
_MOST_WORK = 4e12
_WORTH_IT = 64  # tokens for which any model reads its weights for longer than it computes
# A prompt alone, or one that joins sequences that decode.
_PROMPT_SEQUENCES = (4, 64)


@dataclass(frozen=True, order=True)
class GraphSize:
    """``tokens`` of ``sequences``, of which none has more than ``longest``."""

    tokens: int
    sequences: int
    longest: int

    def holds(self, tokens: int, sequences: int, longest: int) -> bool:
        """Whether a step of this size can run a batch of these numbers."""
        return tokens <= self.tokens and sequences <= self.sequences and longest <= self.longest


def graph_sizes(max_batch_tokens: int, max_running: int, weight_bytes: int) -> list[GraphSize]:
    """All sizes to capture: the largest batch of decoding sequences, which stands in for smaller
    ones, then a single sequence, the other batches, and last the prompts.
    """
    decode = decode_sizes(min(max_batch_tokens, max_running))
    short = min(max_batch_tokens, max(_WORTH_IT, int(_MOST_WORK / max(1, weight_bytes))))
    return [decode.pop(), *decode, *prompt_sizes(short, max_running)]


def decode_sizes(most: int) -> list[GraphSize]:
    """A token for each of 1, 2, 4, 8, 16, 24, 32 sequences, then every 16, and `most`."""
    counts = {1, 2, 4, 8, 16, 24, 32, *range(48, most, 16), most}
    return [GraphSize(count, count, 1) for count in sorted(counts) if count <= most]


def prompt_sizes(most: int, max_sequences: int) -> list[GraphSize]:
    """Prompts of up to ``most`` tokens, alone or among sequences that decode."""
    sizes = {
        GraphSize(tokens, min(sequences, max_sequences, tokens), tokens)
        for tokens in _PROMPT_TOKENS
        for sequences in _PROMPT_SEQUENCES
        if tokens <= most
    }
    return sorted(sizes)
