# SPDX-License-Identifier: Apache-2.0
"""A served model of code: its tokenizer has the tokens to fill in the middle."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from rtp_llm.testing.model_folders import byte_level, with_bos, write_folder
from rtp_llm.testing.server.fake_engine import FakeEngine, ready_message, say
from rtp_llm.testing.server.serving import Served, served
from rtp_llm.text.tokenizer import Tokenizer

FIM = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>")
FILES = ("<|repo_name|>", "<|file_sep|>")


@cache
def code_folder() -> Path:
    backend = byte_level()
    backend.add_special_tokens([*FIM, *FILES])
    return write_folder(Path(mkdtemp()) / "code", with_bos(backend))


@cache
def code_tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(code_folder())


@contextlib.asynccontextmanager
async def code_model(*texts: str, context: int = 1024, **settings: Any) -> AsyncIterator[Served]:
    """A server that says `texts`, one for each choice."""
    engine = FakeEngine(say(code_tokenizer(), *texts))
    engine.next_ready = ready_message(context)
    model = str(code_folder())
    async with served(engine, code_tokenizer(), **{"model": model, **settings}) as server:
        yield server


def last_prompt(server: Served) -> str:
    """What the engine was asked last, special tokens included."""
    ids = server.engine.requests[-1].prompt_token_ids
    return server.state.tokenizer.decode(ids, skip_special_tokens=False)
