# SPDX-License-Identifier: Apache-2.0
"""Memory of a server over weights and KV cache: what the program itself costs.

Proportional set size (pages shared by the two processes count once) after some answers. Weights are
subtracted as the server reports them. The KV cache is kept small and not subtracted, as only those
pages that were written are in memory: the figure is an upper bound.
"""

from __future__ import annotations

import asyncio
import pathlib
import re
import subprocess
import sys

from benchmark.generation import prompts
from benchmark.report import Report, parser
from benchmark.server_process import ROOT, ServerProcess, speaking_folder, stream

GOAL_MEBIBYTES = 400
STREAMS = 8
DEMO = ROOT / "example" / "demo_model"
COLUMNS = ("what", "MiB", "anonymous MiB", "goal MiB")


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--model", type=pathlib.Path, help="default: the demo model and a small one")
    flags.add_argument("--kv-cache-mem-mb", type=int, default=16)
    arguments = flags.parse_args()
    report = Report("Memory over weights", COLUMNS)
    folders = [arguments.model] if arguments.model else [DEMO, speaking_folder("small")]
    for folder in folders:
        measure(report, folder, arguments.threads, arguments.kv_cache_mem_mb)
    report.add(**{"what": "limit: python -c 'import torch'"}, **_torch_alone())
    report.print()
    report.write(arguments.json)


def measure(report: Report, folder: pathlib.Path, threads: int, cache: int) -> None:
    """Rows of one model: each process, then both over weights and cache."""
    flags = ["--num-threads", str(threads), "--kv-cache-mem-mb", str(cache)]
    with ServerProcess(folder, *flags) as server:
        asyncio.run(_answer_some(server.url))
        sizes = [memory_of(pid) for pid in server.processes]
        weights = _weights(server.output)
    name = folder.name
    for process, (whole, anonymous) in zip(("HTTP", "engine"), sizes, strict=True):
        report.add(
            **{"what": f"{name}: {process} process", "MiB": whole, "anonymous MiB": anonymous}
        )
    report.add(
        **{
            "what": f"{name}: both over {weights:.0f} MiB of weights, with {cache} MiB of cache",
            "MiB": sum(whole for whole, _ in sizes) - weights,
            "goal MiB": GOAL_MEBIBYTES,
        }
    )


async def _answer_some(url: str) -> None:
    prompt_ids = [prompt[:32] for prompt in prompts(STREAMS, 64)]
    prompt_ids = [[token % 250 for token in prompt] for prompt in prompt_ids]
    await asyncio.gather(*(stream(url, prompt, 16) for prompt in prompt_ids))


def memory_of(pid: int) -> tuple[float, float]:
    """(proportional set size, its anonymous part) of a process in MiB."""
    text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = {name: int(size) / 1024 for name, size in re.findall(r"(\w+):\s+(\d+) kB", text)}
    return found["Pss"], found["Pss_Anon"]


def _weights(output: list[str]) -> float:
    """The size of the weights in MiB, from the lines that the server prints when it is ready."""
    found = re.search(r"weights (\d+) MiB", "".join(output))
    if found is None:
        raise SystemExit(f"no size of weights in {output!r}")
    return float(found.group(1))


def _torch_alone() -> dict[str, float]:
    code = "import torch, sys; print('up', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        if process.stdout is not None:
            process.stdout.readline()
        whole, anonymous = memory_of(process.pid)
        process.communicate()
    return {"MiB": whole, "anonymous MiB": anonymous}


if __name__ == "__main__":
    main()
