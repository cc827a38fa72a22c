# SPDX-License-Identifier: Apache-2.0
"""llama.cpp on a GGUF file, with as many sequences as wanted in a batch; see llama_cpp_peer.py."""

from __future__ import annotations

import importlib
import pathlib
import statistics
import time
from typing import Any

import numpy as np

from benchmark.generation import Timer, prompts


class LlamaCppFile:
    """Decodes through llama.cpp's own batches; call `llama_cpp_peer.why_not_run` first."""

    def __init__(
        self, file: pathlib.Path, threads: int, sequences: int, timer: Timer = time.perf_counter
    ) -> None:
        self._api: Any = importlib.import_module("llama_cpp")
        self._timer = timer
        self._llama: Any = self._api.Llama(str(file), n_ctx=64, n_threads=threads, verbose=False)
        params = self._api.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = 4096, 2048, 512
        params.n_threads = params.n_threads_batch = threads
        params.n_seq_max = sequences
        self._context = self._api.llama_init_from_model(self._llama._model.model, params)
        self._batch = self._api.llama_batch_init(2048, 0, 1)
        self._vocabulary = self._llama.n_vocab()

    def decode_seconds(self, batch: int, length: int, steps: int) -> float:
        """Median time of a greedy step of ``batch`` sequences."""
        self._clear()
        tokens = []
        for sequence, prompt in enumerate(prompts(batch, length)):
            self._decode([(token, place, sequence) for place, token in enumerate(prompt)], 1)
            tokens.append(self._greedy(length - 1))
        times = []
        for step in range(steps):
            began = self._timer()
            rows = [(token, length + step, sequence) for sequence, token in enumerate(tokens)]
            self._decode(rows, batch)
            tokens = [self._greedy(row) for row in range(batch)]
            times.append(self._timer() - began)
        return statistics.median(times)

    def prefill_seconds(self, length: int) -> float:
        """Time to the first token of one prompt."""
        self._clear()
        began = self._timer()
        self._decode([(token, place, 0) for place, token in enumerate(prompts(1, length)[0])], 1)
        self._greedy(length - 1)
        return self._timer() - began

    def _clear(self) -> None:
        self._api.llama_memory_clear(self._api.llama_get_memory(self._context), True)

    def _decode(self, rows: list[tuple[int, int, int]], outputs: int) -> None:
        """Run (token, position, sequence) rows; the last `outputs` of them give logits."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for index, (token, place, sequence) in enumerate(rows):
            batch.token[index], batch.pos[index] = token, place
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
            batch.logits[index] = index >= len(rows) - outputs
        failed = self._api.llama_decode(self._context, batch)
        if failed:
            raise RuntimeError(f"llama_decode returned {failed}")

    def _greedy(self, row: int) -> int:
        logits = self._api.llama_get_logits_ith(self._context, row)
        return int(np.ctypeslib.as_array(logits, shape=(self._vocabulary,)).argmax())
