# SPDX-License-Identifier: Apache-2.0
"""Pairs of texts reach the engine with the place at which the second text begins."""

from __future__ import annotations

import msgspec
from tokenizers import processors

from rtp_llm.testing.server.serving import demo_folder, demo_tokenizer, fake_engine, run, served
from rtp_llm.text.tokenizer import Tokenizer


@run
async def test_rerank_says_where_documents_begin() -> None:
    engine = fake_engine()
    engine.next_ready = msgspec.structs.replace(engine.next_ready, tasks=("score",), vector_size=4)
    engine.pool = lambda *_: [0.5]
    async with served(engine) as server:
        body = {"query": "a house", "documents": ["a", "a house"]}
        assert (await server.client.post("/rerank", json=body)).status_code == 200
        batch, begin = server.engine.batches[-1], demo_tokenizer().second_text("a house")
        assert [batch.second_text(place) for place in range(2)] == [begin] * 2
        assert begin == len(demo_tokenizer().encode("a house", False))


def test_where_the_second_text_begins_follows_from_the_template() -> None:
    tokenizer, ends = Tokenizer.from_folder(demo_folder()), ("<|im_start|>", "<|im_end|>")
    backend = tokenizer._backend
    special = [(name, backend.token_to_id(name)) for name in ends]
    single = "<|im_start|> $A <|im_end|>"
    for types, extra in ((":1", 1), ("", None)):
        pair = f"{single} <|im_end|> $B{types} <|im_end|>{types}"
        backend.post_processor = processors.TemplateProcessing(single, pair, special)
        vars(tokenizer).pop("_before_second", None)
        expected = 0 if extra is None else len(tokenizer.encode("a house")) + extra
        assert tokenizer.second_text("a house") == expected
