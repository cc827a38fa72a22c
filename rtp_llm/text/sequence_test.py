# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rtp_llm.testing.model_folders import byte_level, sentencepiece, write_folder
from rtp_llm.text.sequence import SequenceText
from rtp_llm.text.tokenizer import Tokenizer

SLOW = [HealthCheck.too_slow]  # drawing may have to wait for a core

TEXT = "Once upon a time there was 😀 a small house, 你好, and in the house lived a cat."


@pytest.fixture(scope="module", params=[byte_level, sentencepiece])
def tokenizer(request, tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("model")
    return Tokenizer.from_folder(write_folder(folder, request.param()))


def generate(tokenizer: Tokenizer, ids: list[int], sizes: list[int], **kwargs) -> SequenceText:
    sequence = SequenceText(tokenizer.detokenizer(), **kwargs)
    sequence.chunks = []  # type: ignore[attr-defined]
    start = 0
    sizes = [*sizes, len(ids)]
    for size in sizes:
        end = min(start + size, len(ids))
        text = sequence.feed(ids[start:end], finished=end == len(ids))
        sequence.chunks.append(text)  # type: ignore[attr-defined]
        start = end
        if sequence.stopped or start == len(ids):
            break
    return sequence


@settings(max_examples=150, deadline=None, suppress_health_check=SLOW)
@given(st.data())
def test_stops_at_every_token_border(tokenizer: Tokenizer, data: st.DataObject) -> None:
    """Streaming in any batches equals taking all tokens at once, for stops cut from the text."""
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    spans = st.tuples(st.integers(0, len(TEXT) - 1), st.integers(1, 8))
    stops = [TEXT[a : a + n] for a, n in data.draw(st.lists(spans, max_size=3))]
    sizes = data.draw(st.lists(st.integers(0, 4), max_size=60))
    stepped = generate(tokenizer, ids, sizes, stops=stops)
    whole = generate(tokenizer, ids, [len(ids)], stops=stops)
    text = "".join(stepped.chunks)  # type: ignore[attr-defined]
    assert text == "".join(whole.chunks)  # type: ignore[attr-defined]
    assert stepped.stop_string == whole.stop_string
    assert stepped.num_tokens == whole.num_tokens
    assert TEXT.startswith(text) and stepped.visible == len(text)
    assert not any(stop in text for stop in stops)
    assert bool(stops) == stepped.stopped


def test_tokens_after_the_stop_are_not_counted(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    sequence = generate(tokenizer, ids, [len(ids)], stops=["there"])
    assert 0 < sequence.num_tokens < len(ids)
    assert tokenizer.decode(ids[: sequence.num_tokens]).startswith("Once upon a time there")
    assert "there" not in tokenizer.decode(ids[: sequence.num_tokens - 1])
    assert sequence.feed(ids) == ""


@pytest.mark.parametrize("floor", range(0, 30))
def test_stops_below_the_floor_neither_finish_nor_cut(tokenizer: Tokenizer, floor: int) -> None:
    text = "house house house house"
    ids = tokenizer.encode(text, add_special_tokens=False)
    shown = tokenizer.decode(ids[:floor])
    for size in (1, 3, len(ids)):
        sizes = [size] * len(ids)
        sequence = generate(tokenizer, ids, sizes, stops=["house"], min_tokens=floor)
        visible = "".join(sequence.chunks)  # type: ignore[attr-defined]
        position = text.find("house", max(0, len(shown) - len("house") + 1))
        assert visible == (text if position < 0 else text[:position])
        assert sequence.num_tokens >= min(floor, len(ids))


def test_offsets_say_where_each_token_begins(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a small house", add_special_tokens=False)
    sequence = generate(tokenizer, ids, [1] * len(ids), track_offsets=True)
    assert sequence.offsets is not None
    assert sequence.offsets == [len(tokenizer.decode(ids[:i])) for i in range(len(ids))]


def test_held_text_is_flushed_at_the_end(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a small hou", add_special_tokens=False)
    sequence = SequenceText(tokenizer.detokenizer(), ["house"])
    assert sequence.feed(ids) == "a small "
    assert sequence.feed([], finished=True) == "hou"
    assert not sequence.stopped
