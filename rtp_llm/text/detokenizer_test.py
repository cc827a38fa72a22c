# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rtp_llm.testing.model_folders import CORPUS, STYLES
from rtp_llm.text.detokenizer import ByteDetokenizer, WindowDetokenizer
from rtp_llm.text.token_bytes import TokenBytes, decoder_style

SLOW = [HealthCheck.too_slow]  # drawing may have to wait for a core
TOKENIZERS = {name: build() for name, build in STYLES.items()}
BYTE_STYLES = [name for name in STYLES if name != "wordpiece"]
TEXTS = [
    *CORPUS,
    " leading",
    "two  spaces",
    "😀",
    "a\u0301 🏳️‍🌈 \u200b",
    "tail ",
    "",
    "▁",
    "<think>x",
]


def make(name: str, context: list[int] | None = None) -> ByteDetokenizer | WindowDetokenizer:
    tokenizer = TOKENIZERS[name]
    added = tokenizer.get_added_tokens_decoder()
    hidden = frozenset(key for key, token in added.items() if token.special)
    style = decoder_style(tokenizer)
    if style is None:
        return WindowDetokenizer(lambda ids: decode(tokenizer, ids, False), hidden, context or ())
    return ByteDetokenizer(TokenBytes(tokenizer, style), hidden, context or ())


def decode(tokenizer: tokenizers.Tokenizer, ids: object, skip: bool = True) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=skip))  # type: ignore[call-overload]


def stream(name: str, ids: list[int], sizes: list[int] | None = None) -> list[str]:
    detokenizer = make(name)
    chunks, start = [], 0
    for size in sizes or [1] * len(ids):
        chunks.append(detokenizer.feed(ids[start : start + size]))
        start += size
    return [*chunks, detokenizer.feed(ids[start:]), detokenizer.flush()]


def test_styles_are_recognised() -> None:
    recognised = [name for name in STYLES if decoder_style(TOKENIZERS[name]) is not None]
    assert recognised == BYTE_STYLES


@pytest.mark.parametrize("name", STYLES)
@pytest.mark.parametrize("text", TEXTS)
def test_chunks_join_to_the_full_decoding(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text).ids
    chunks = stream(name, ids)
    assert "".join(chunks) == decode(tokenizer, ids)
    if "\ufffd" not in decode(tokenizer, ids):
        assert not any("\ufffd" in chunk for chunk in chunks)


@pytest.mark.parametrize("name", ["byte_level", "sentencepiece", "gemma"])
def test_characters_are_never_split(name: str) -> None:
    ids = TOKENIZERS[name].encode("😀 你好 👍🏽 é").ids
    chunks = stream(name, ids)
    assert "" in chunks[:-1]  # some characters take several tokens
    assert all("\ufffd" not in chunk for chunk in chunks)
    assert "".join(chunks) == "😀 你好 👍🏽 é"


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(st.data())
@pytest.mark.parametrize("name", STYLES)
def test_random_ids_and_random_batches(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    size = tokenizer.get_vocab_size()
    ids = data.draw(st.lists(st.integers(0, size + 5), max_size=40))
    sizes = data.draw(st.lists(st.integers(0, 5), max_size=20))
    joined = "".join(stream(name, ids, sizes))
    assert joined == "".join(stream(name, ids))
    full = decode(tokenizer, ids)
    # A run of byte-fallback tokens that is not valid UTF-8 is all U+FFFD in the library's decoder;
    # a stream keeps the characters before the bad byte, as they were already shown.
    if name in ("byte_level", "metaspace") or "\ufffd" not in full:
        assert joined == full


def test_unfinished_character_is_shown_at_the_end_only() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode("a😀").ids
    detokenizer = make("byte_level")
    assert detokenizer.feed(ids[:-1]) == "a"
    assert detokenizer.flush() == decode(tokenizer, ids[:-1])[1:] == "\ufffd"


@pytest.mark.parametrize("name", STYLES)
def test_context_makes_prompt_and_answer_one_text(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode("Once upon a time there was a small house").ids
    for cut in range(1, len(ids)):
        detokenizer = make(name, context=ids[:cut])
        answer = detokenizer.feed(ids[cut:]) + detokenizer.flush()
        assert decode(tokenizer, ids[:cut]) + answer == decode(tokenizer, ids)


def test_without_context_the_first_space_goes() -> None:
    tokenizer = TOKENIZERS["sentencepiece"]
    ids = tokenizer.encode("house").ids
    assert tokenizer.id_to_token(ids[0]).startswith("▁")
    assert "".join(stream("sentencepiece", ids)) == "house"
    bos = tokenizer.token_to_id("<s>")
    assert make("sentencepiece", context=[bos]).feed(ids) == "house"
    assert make("sentencepiece", context=ids).feed(ids) == " house"


@pytest.mark.parametrize("name", STYLES)
def test_special_tokens_are_hidden(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    end = tokenizer.token_to_id("<|im_end|>")
    ids = tokenizer.encode("the house").ids
    mixed = [end, *ids[:1], end, *ids[1:], end]
    assert "".join(stream(name, mixed)) == decode(tokenizer, ids)


def test_long_invalid_output_costs_no_more_per_token() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    rng = random.Random(0)
    high = [i for i in range(tokenizer.get_vocab_size()) if tokenizer.id_to_token(i) in "ĢģĤĥ"]
    assert high
    ids = [rng.choice(high) for _ in range(3000)]
    detokenizer = make("byte_level")
    chunks = [detokenizer.feed([token]) for token in ids]
    assert max(map(len, chunks)) <= 3
    assert "".join(chunks) + detokenizer.flush() == decode(tokenizer, ids)


def test_an_unknown_id_is_not_the_first_token() -> None:
    tokenizer = TOKENIZERS["metaspace"]
    ids = [tokenizer.get_vocab_size(), *tokenizer.encode("a b").ids]
    assert "".join(stream("metaspace", ids)) == decode(tokenizer, ids)


def test_what_the_context_left_unfinished_is_not_the_answers() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    smile, yes = tokenizer.encode("😀").ids, tokenizer.encode("yes").ids
    assert len(smile) > 1
    for cut in range(1, len(smile)):
        context = tokenizer.encode("Hello ").ids + smile[:cut]
        interrupted = make("byte_level", context)
        assert interrupted.feed([]) + interrupted.feed(yes) + interrupted.flush() == "yes"
        assert make("byte_level", context).flush() == ""
        finished = make("byte_level", context)
        assert finished.feed(smile[cut:] + yes) + finished.flush() == "😀yes"


def test_an_answer_shows_what_it_leaves_unfinished_itself() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    letter, yes = tokenizer.encode("\U00010348").ids, tokenizer.encode("yes").ids
    assert len(letter) > 2
    detokenizer = make("byte_level", letter[:1])
    assert detokenizer.feed(letter[1:2] + yes) == "\ufffdyes"
    detokenizer = make("byte_level", letter[:1])
    assert detokenizer.feed(letter[1:2]) + detokenizer.flush() == "\ufffd"


@pytest.mark.parametrize(
    ("answer", "text"),
    [(b"yes", "yes"), (b"", ""), (b"\x98\x80yes", "😀yes")],
)
def test_a_window_leaves_unfinished_characters_to_the_context(answer: bytes, text: str) -> None:
    context = b"Hello \xf0\x9f"
    detokenizer = WindowDetokenizer(
        lambda ids: bytes(ids).decode(errors="replace"), frozenset(), list(context)
    )
    assert detokenizer.feed(list(answer)) + detokenizer.flush() == text
