# SPDX-License-Identifier: Apache-2.0
"""Loading one rank's shard of a model, against loading all of it on one: seconds per gigabyte.

A tensor-parallel rank reads its own bytes alone: ranges of whole rows where a layer's rows
are divided, a slice of each row where its columns are. Files are in the page cache, so the figures
show the cost of slicing, not of the disk. Times are for reading; building the layers before it
takes as long on each rank as on one alone.
"""

from __future__ import annotations

import time
from functools import partial

from benchmark.random_model import SHAPES, model_folder
from benchmark.report import Report, parser
from benchmark.rounds import interleave
from rtp_llm.config.settings import Settings
from rtp_llm.device import resolve_device
from rtp_llm.distributed.tensor_parallel import planned_rank
from rtp_llm.loader.load import load_model
from rtp_llm.loader.progress import Progress

GOAL = 1.1  # of what one rank takes for the same bytes
SIZES = (1, 2)
COLUMNS = ("ranks", "GB of one", "ms", "spread ms", "GB/s", "of one rank's time", "goal")


class Reading(Progress):
    """Records how long a model's weights took to load, and their size in bytes."""

    def start(self, total: int) -> None:
        self.bytes, self._began = total, time.perf_counter()

    def finish(self) -> None:
        self.seconds = time.perf_counter() - self._began


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--shape", default="qwen3-8b", help="of benchmark/random_model.py")
    flags.add_argument("--layers", type=int, default=8)
    flags.add_argument("--rounds", type=int)
    arguments = flags.parse_args()
    shape = shortened("tiny" if arguments.quick else arguments.shape, arguments.layers)
    folder, device = model_folder(shape), resolve_device()
    settings = Settings(model=str(folder), dtype="bfloat16")
    readings: dict[int, Reading] = {}

    def load(ranks: int) -> float:
        parallel, readings[ranks] = planned_rank(ranks), Reading()
        load_model(
            folder, device=device, settings=settings, tensor_parallel=parallel,
            progress=readings[ranks],
        )  # fmt: skip
        return readings[ranks].seconds

    rounds = arguments.rounds or (1 if arguments.quick else 15)
    figures = interleave({str(n): partial(load, n) for n in SIZES}, rounds)
    report = Report(f"Loading {shape} on {device.description()}", COLUMNS)
    alone = figures["1"].median / readings[1].bytes
    for ranks in SIZES:
        figure, size = figures[str(ranks)], readings[ranks].bytes
        report.add(
            **{
                "ranks": ranks,
                "GB of one": size / 1e9,
                "ms": 1e3 * figure.median,
                "spread ms": tuple(1e3 * value for value in figure.spread),
                "GB/s": size / figure.median / 1e9,
                "of one rank's time": figure.median / size / alone,
                "goal": GOAL if ranks > 1 else None,
            }
        )
    report.notes.append(f"{rounds} rounds, one process")
    report.print()
    report.write(arguments.json)


def shortened(shape: str, layers: int) -> str:
    """Register `shape` with `layers` layers and a vocabulary small relative to them."""
    name = f"{shape}-{layers}-layers"
    small = {"num_hidden_layers": layers, "vocab_size": 16384, "tie_word_embeddings": True}
    SHAPES[name] = {**SHAPES[shape], **small}
    return name


if __name__ == "__main__":
    main()
