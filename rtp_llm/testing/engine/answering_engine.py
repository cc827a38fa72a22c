# SPDX-License-Identifier: Apache-2.0
"""A scripted engine process that answers prompts with texts, for agents whose prompts are long.

ANSWERS names a JSON file, a list of [parts, says]: a prompt is answered with the `says` of the
first row whose parts are all in it. The log names the file.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from rtp_llm.config.settings import Settings
from rtp_llm.engine.columns import step_columns
from rtp_llm.engine.messages import FINISH_EOS, FINISH_LENGTH, INDEX_BITS, AddRequest, StepOutput
from rtp_llm.engine.process.main import main
from rtp_llm.testing.engine import scripted_engine
from rtp_llm.testing.engine.scripted_engine import STEP_SECONDS, ScriptedEngine
from rtp_llm.text.tokenizer import Tokenizer
from rtp_llm.worker.worker import StepOutputs

CONTEXT = 2**17


class AnsweringEngine(ScriptedEngine):
    """`running`: the ids that each sequence has yet to produce."""

    def __init__(self, script: str, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._eos = tokenizer.eos_token_ids[0]
        with open(script) as file:
            self._answers: list[tuple[list[str], str]] = json.load(file)
        logging.getLogger("rtp_llm.engine").warning("answers come from the script %s", script)

    def add(self, request: AddRequest) -> None:
        prompt = self._tokenizer.decode(request.prompt_token_ids, skip_special_tokens=False)
        says = next(says for parts, says in self._answers if all(each in prompt for each in parts))
        ids = [*self._tokenizer.encode(says, add_special_tokens=False), self._eos]
        self.running[request.request_id, 0] = ids[: request.sampling.max_tokens or None]

    def step(self) -> list[StepOutput]:
        if not self.running:
            return []
        time.sleep(STEP_SECONDS)
        self.steps += 1
        rows = [(key, ids.pop(0), not ids) for key, ids in self.running.items()]
        self.running = {key: ids for key, ids in self.running.items() if ids}
        last = {True: FINISH_LENGTH, False: 0}
        result: Any = SimpleNamespace(
            ids=np.array([key[0] << INDEX_BITS for key, _, _ in rows], np.int64),
            tokens=np.array([[token] for _, token, _ in rows], np.int32),
            num_tokens=np.ones(len(rows), np.int32),
            finish=np.array(
                [FINISH_EOS if token == self._eos else last[ends] for _, token, ends in rows],
                np.uint8,
            ),
            cached_tokens=np.zeros(len(rows), np.int32),
            queue_seconds=np.zeros(len(rows), np.float32),
        )
        return [step_columns(result, StepOutputs(len(rows), len(rows)), STEP_SECONDS)]


def build(settings: Settings, *_: Any) -> Any:
    """Its context has room for the prompts of agents."""
    tokenizer = Tokenizer.from_folder(settings.model, settings.chat_template)
    built = scripted_engine.build(settings)
    built.engine = AnsweringEngine(os.environ["ANSWERS"], tokenizer)
    built.ready = msgspec.structs.replace(
        built.ready, max_model_len=CONTEXT, vocab_size=tokenizer.vocab_size
    )
    return built


if __name__ == "__main__":
    sys.exit(main(build))
