# SPDX-License-Identifier: Apache-2.0
"""The files of rtp_llm that run for one streamed chat, in order of their first call, by process.

`idle`: an idle server runs it, too (heartbeats, probes). C++ is not seen. ARCHITECTURE.md names the
stations that matter among them.
"""

from __future__ import annotations

import json
import os
import pathlib
import tempfile
import time
import urllib.request
from collections.abc import Callable

from benchmark.report import Report, parser
from benchmark.server_process import ROOT, ServerProcess

COLUMNS = ("process", "file", "first call", "ms", "idle")
_IDLE_SECONDS = 2.0
_SETTLE_SECONDS = 0.5
_SITE = "from benchmark.processes import call_recorder\n\ncall_recorder.start()\n"
_QUESTION = {"role": "user", "content": "What is 12 + 30?"}
_DEMO = ROOT / "example" / "demo_model"


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--model", default=str(_DEMO))
    arguments = flags.parse_args()
    report = Report("Files that run for one streamed chat", COLUMNS)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "sitecustomize.py").write_text(_SITE)
        os.environ["RECORD_CALLS_IN"] = name
        os.environ["PYTHONPATH"] = os.pathsep.join([name, os.environ.get("PYTHONPATH", "")])
        with ServerProcess(arguments.model, "--num-threads", "1") as server:
            chat(server.url)  # what is loaded lazily is there
            idle = recorded(folder, lambda: time.sleep(_IDLE_SECONDS))
            calls_by_process = recorded(folder, lambda: chat(server.url))
    began = min(seconds for calls in calls_by_process.values() for _, seconds in calls.values())
    for process, calls in calls_by_process.items():
        for file, (function, seconds) in calls.items():
            known = "idle" if file in idle.get(process, {}) else None
            call = {"first call": function, "ms": (seconds - began) * 1e3, "idle": known}
            report.add(process=process, file=file, **call)
        report.notes.append(f"{process}: {len(calls)} files")
    report.print()
    report.write(arguments.json)


def chat(url: str) -> None:
    """Stream one short answer to its end."""
    body = {"messages": [_QUESTION], "stream": True, "temperature": 0, "max_tokens": 16}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        answer.read()


def recorded(
    folder: pathlib.Path, do: Callable[[], None]
) -> dict[str, dict[str, tuple[str, float]]]:
    """By process: the files called while `do` runs; of each the first function, and when."""
    (folder / "on").touch()
    time.sleep(_SETTLE_SECONDS)  # every process looks for it
    do()
    (folder / "on").unlink()
    time.sleep(_SETTLE_SECONDS)
    found = {}
    for file in folder.glob("*.json"):
        content = json.loads(file.read_text())
        calls = {_relative(path): tuple(call) for path, call in content["calls"].items()}
        if calls:
            found[_process_name(content["command"])] = calls
        file.unlink()
    return found


def _relative(path: str) -> str:
    return path[path.rindex("/rtp_llm/") + 1 :]


def _process_name(command: list[str]) -> str:
    """HTTP, or the module that `python -m` runs."""
    module = command[command.index("-m") + 1] if "-m" in command else ""
    return module.removeprefix("rtp_llm.") if module.endswith((".main", ".process")) else "HTTP"


if __name__ == "__main__":
    main()
