# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from rtp_llm.testing.model_folders import byte_level, write_folder
from rtp_llm.text.bad_words import bad_word_ids
from rtp_llm.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_folder(write_folder(tmp_path_factory.mktemp("bad"), byte_level()))


def test_a_word_is_spelt_with_and_without_a_space(tokenizer: Tokenizer) -> None:
    spelt = bad_word_ids(tokenizer, ["upon", " time", "upon"])
    assert [tokenizer.decode(ids) for ids in spelt] == ["upon", " upon", "time", " time"]


def test_spaces_alone_are_a_word(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(bad_word_ids(tokenizer, ["  "])[0]) == "  "
