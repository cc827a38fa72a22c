"""What a grammar lets through, byte by byte."""

from __future__ import annotations

from collections.abc import Sequence

import llguidance

from rtp_llm.constraints import Grammar
from rtp_llm.text.grammar.vocabulary import vocabulary_of


class ByteVocabulary:
    """Each byte is a token; then come special tokens, the first of which ends the text."""

    def __init__(self, specials: Sequence[str] = ("<|end|>",)) -> None:
        self._specials = tuple(specials)
        self.special_ids = frozenset(range(256, 256 + len(specials)))
        self.eos_token_ids = (256,)
        self.vocab_size = 256 + len(specials)

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else self._specials[token_id - 256].encode()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())


BYTES = ByteVocabulary()


def matcher(grammar: Grammar, vocabulary: ByteVocabulary = BYTES) -> llguidance.LLMatcher:
    """A matcher at the beginning; ValueError when the grammar does not compile."""
    made = llguidance.LLMatcher(vocabulary_of(vocabulary), grammar.text, log_level=0)
    if made.is_error():
        raise ValueError(made.get_error())
    return made


def accepts(
    grammar: Grammar | llguidance.LLMatcher,
    text: str | bytes,
    vocabulary: ByteVocabulary = BYTES,
) -> bool:
    """Whether the whole `text` is an answer that the grammar lets end."""
    start = matcher(grammar, vocabulary) if isinstance(grammar, Grammar) else grammar.deep_copy()
    data = text.encode() if isinstance(text, str) else text
    taken = start.try_consume_tokens(list(data))
    if start.is_error():
        raise ValueError(start.get_error())
    return taken == len(data) and start.is_accepting()
