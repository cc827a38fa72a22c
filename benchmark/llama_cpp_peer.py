# SPDX-License-Identifier: Apache-2.0
"""llama.cpp as a contender, through llama-cpp-python: built once into the cache, then imported."""

from __future__ import annotations

import importlib
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from benchmark.generation import prompts
from benchmark.hybrid_shapes import HYBRID_SHAPES
from benchmark.random_model import cache_folder

_PACKAGES = ("llama-cpp-python==0.3.36", "gguf==0.19.0", "diskcache==5.6.3")
# Its helpers for servers and pictures are not needed, and take most of the time to compile.
_CMAKE = (
    "-DGGML_NATIVE=ON -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_TESTS=OFF "
    "-DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAVA_BUILD=OFF -DMTMD_BUILD=OFF"
)


def why_not_run(shapes: Iterable[str]) -> str | None:
    """Installs llama-cpp-python where it is missing; the reason when that fails, or when none of
    these shapes can be written for it, else None."""
    if all(shape in HYBRID_SHAPES for shape in shapes):
        return "no gated delta nets in benchmark/gguf_model.py"
    folder = cache_folder() / ("llama_cpp_" + "_".join(_PACKAGES).replace("==", "-"))
    if not folder.exists():
        print("compiling llama-cpp-python once, about ten minutes on two cores", file=sys.stderr)
        partial = folder.with_suffix(f".{os.getpid()}")
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
        done = subprocess.run(
            [*install, str(partial), *_PACKAGES],
            env={**os.environ, "CMAKE_ARGS": _CMAKE},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            return "llama-cpp-python did not build: " + done.stderr.strip().splitlines()[-1]
        partial.rename(folder)
    sys.path.append(str(folder))
    try:
        importlib.import_module("llama_cpp")
    except (ImportError, OSError, RuntimeError) as error:
        return f"llama-cpp-python does not load: {error}"
    return None


class LlamaCpp:
    """One stream of llama.cpp on the weights of a Hugging Face folder; call `why_not_run` first."""

    def __init__(self, folder: pathlib.Path, kind: str, threads: int) -> None:
        from benchmark.gguf_model import write_gguf

        path = folder / f"{kind}.gguf"
        if not path.exists():
            partial = path.with_suffix(f".{os.getpid()}")
            write_gguf(folder, partial, kind)
            partial.rename(path)
        self._llama: Any = importlib.import_module("llama_cpp").Llama(
            str(path),
            n_ctx=4096,
            n_batch=2048,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
        )

    def decode_seconds(self, batch: int, length: int, steps: int) -> float:
        """Median time of a greedy step of one stream; ``batch`` must be 1."""
        if batch != 1:
            raise ValueError(f"llama-cpp-python decodes one stream, not {batch}")
        self._llama.reset()
        self._llama.eval(prompts(1, length)[0])
        times = []
        for _ in range(steps):
            began = time.perf_counter()
            self._llama.eval([self._greedy_token()])
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    def prefill_seconds(self, length: int) -> float:
        """Time to the first token of one prompt."""
        self._llama.reset()
        began = time.perf_counter()
        self._llama.eval(prompts(1, length)[0])
        self._greedy_token()
        return time.perf_counter() - began

    def _greedy_token(self) -> int:
        logits = self._llama._ctx.get_logits()
        return int(np.ctypeslib.as_array(logits, shape=(self._llama.n_vocab(),)).argmax())
