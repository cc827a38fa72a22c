# SPDX-License-Identifier: Apache-2.0
"""Embeddings on the CPU: batches of texts, against transformers and ONNX Runtime.

Random float32 weights in the shapes of all-MiniLM-L6 and of BERT-base, mean pooling. Peers get the
token ids of a batch padded to its longest text and an attention mask, as sentence-transformers
gives them; ours gets lists of ids. ONNX Runtime runs a file that torch.onnx makes of the same
model; without the packages onnx, onnxscript and onnxruntime it is left out. Contenders take turns;
shown are the medians of the rounds and the spread of our share of the peers' time. The limit is
every product of the real tokens at the rate of torch's own library.
"""

from __future__ import annotations

import functools
import importlib
import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor

from benchmark.encoder_shapes import (
    ENCODER_SHAPES,
    TOKENS,
    embedding_operations,
    encoder_config,
    save_pooling,
)
from benchmark.product_rate import product_rate
from benchmark.random_model import cache_folder
from benchmark.random_tokenizer import save_random_tokenizer
from benchmark.report import Report, parser
from benchmark.rounds import Figure, interleave
from rtp_llm import LLM

LENGTHS: dict[str, tuple[int, ...]] = {
    "16": (16,),
    "64": (64,),
    "256": (256,),
    "mixed": (16, 200, 40, 24, 90, 12, 256, 64),
}
BATCHES = (1, 8, 32)
COLUMNS = ("shape", "tokens", "batch", "ms", "peer", "peer ms", "x peer", "spread", "% of limit")

Contender = Callable[[], float]


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--shape", choices=list(ENCODER_SHAPES), action="append")
    flags.add_argument("--length", choices=list(LENGTHS), action="append")
    flags.add_argument("--batch", type=int, action="append")
    flags.add_argument("--rounds", type=int)
    flags.add_argument(
        "--cpu-time",
        action="store_true",
        help="measure the CPU time of all threads, for a machine that other work keeps busy",
    )
    arguments = flags.parse_args()
    torch.set_num_threads(arguments.threads)
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    rounds = arguments.rounds or (3 if arguments.quick else 9)
    report = Report("Embeddings on the CPU, float32", COLUMNS)
    for shape in arguments.shape or (["tiny"] if arguments.quick else ["minilm", "bert-base"]):
        folder = encoder_folder(shape)
        with LLM(
            str(folder), dtype="float32", task="embed", num_threads=arguments.threads
        ) as engine:
            peers = {"torch": torch_peer(folder)} | onnx_peer(folder, arguments.threads)
            for name in arguments.length or LENGTHS:
                for batch in arguments.batch or BATCHES:
                    add_cell(report, shape, name, batch, engine, peers, rounds, clock)
    report.print()
    report.write(arguments.json)


def add_cell(
    report: Report,
    shape: str,
    name: str,
    batch: int,
    engine: LLM,
    peers: dict[str, Callable[[Tensor, Tensor], Any]],
    rounds: int,
    clock: Callable[[], float],
) -> None:
    """One row for each peer."""
    texts = texts_of(LENGTHS[name], batch)
    padded = padded_batch(texts)
    work: dict[str, Callable[[], Any]] = {
        "ours": lambda: engine.embed(texts, use_tqdm=False),
        **{peer: functools.partial(run, *padded) for peer, run in peers.items()},
    }
    expected = work["torch"]()[0]
    actual = torch.tensor(work["ours"]()[0].outputs.embedding)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)
    repeats = min(50, max(1, int(0.2 / seconds(work["ours"], 1, time.perf_counter))))
    turns = {each: functools.partial(seconds, call, repeats, clock) for each, call in work.items()}
    figures = interleave(turns, rounds)
    limit = embedding_operations(shape, [len(text) for text in texts]) / product_rate(
        "float32", clock
    )
    for peer in peers:
        pairs = zip(figures["ours"].values, figures[peer].values, strict=True)
        ratios = Figure(tuple(theirs / ours for ours, theirs in pairs))
        report.add(
            **{"shape": shape, "tokens": name, "batch": batch, "peer": peer},
            ms=figures["ours"].median * 1e3,
            spread=ratios.spread,
            **{"peer ms": figures[peer].median * 1e3, "x peer": ratios.median},
            **{"% of limit": 100 * limit / figures["ours"].median},
        )
        print(json.dumps(report.rows[-1]), flush=True)


def seconds(call: Callable[[], Any], repeats: int, clock: Callable[[], float]) -> float:
    """Return the time of one call, over `repeats` of them."""
    began = clock()
    for _ in range(repeats):
        call()
    return (clock() - began) / repeats


def texts_of(lengths: tuple[int, ...], batch: int) -> list[list[int]]:
    """Token ids, the same ones every time."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randint(1, TOKENS, (lengths[i % len(lengths)],), generator=generator).tolist()
        for i in range(batch)
    ]


def padded_batch(texts: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Return ids and mask, int64 [batch, longest]."""
    longest = max(map(len, texts))
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts])
    return ids, mask


def encoder_folder(shape: str) -> pathlib.Path:
    """A folder as users have it, with mean pooling; the same weights every time."""
    folder = cache_folder() / f"encoder-{shape}"
    if (folder / "model.safetensors").exists():
        return folder
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(**encoder_config(shape))
    folder.mkdir(parents=True, exist_ok=True)
    save_random_tokenizer(folder / "tokenizer.json", config.vocab_size)
    save_pooling(folder, "mean_tokens", normalize=False)
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


class MeanPooled(torch.nn.Module):
    """A model and the mean of its states over the real tokens."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__()
        self.model = transformers.AutoModel.from_pretrained(
            folder, add_pooling_layer=False, attn_implementation="sdpa"
        ).eval()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Vectors [batch, hidden] of ids and mask [batch, longest]."""
        states = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        real = attention_mask.unsqueeze(-1).to(states.dtype)
        mean: Tensor = (states * real).sum(1) / real.sum(1)
        return mean


def torch_peer(folder: pathlib.Path) -> Callable[[Tensor, Tensor], Tensor]:
    """As sentence-transformers runs it: transformers with torch's own attention."""
    model = MeanPooled(folder)

    def run(ids: Tensor, mask: Tensor) -> Tensor:
        with torch.inference_mode():
            pooled: Tensor = model(ids, mask)
        return pooled

    return run


def onnx_peer(
    folder: pathlib.Path, threads: int
) -> dict[str, Callable[[Tensor, Tensor], list[Tensor]]]:
    """ONNX Runtime by name, or nothing where a package is missing."""
    try:
        runtime = importlib.import_module("onnxruntime")
        importlib.import_module("onnxscript")
    except ImportError as missing:
        print(f"without ONNX Runtime: {missing}")
        return {}
    file = folder / "model.onnx"
    if not file.exists():
        dynamic = {0: torch.export.Dim("batch", min=1), 1: torch.export.Dim("length", min=2)}
        torch.onnx.export(
            MeanPooled(folder),
            padded_batch(texts_of((7, 5), 3)),
            str(file),
            dynamo=True,
            input_names=["ids", "mask"],
            dynamic_shapes=(dynamic, dynamic),
            external_data=False,
        )
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    session = runtime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def run(ids: Tensor, mask: Tensor) -> list[Tensor]:
        found = session.run(None, {"ids": ids.numpy(), "mask": mask.numpy()})
        return [torch.from_numpy(each) for each in found[0]]

    return {"ONNX Runtime": run}


if __name__ == "__main__":
    main()
