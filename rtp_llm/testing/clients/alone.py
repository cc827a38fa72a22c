# SPDX-License-Identifier: Apache-2.0
"""The turns of a client library with a server, alone on a machine without a network.

`unshare --map-root-user --net python -m ... LIBRARY PYTHON FOLDER`: PYTHON has the library, FOLDER
is its home. The server has the demo model. Prints what the library and the server said, as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from rtp_llm.testing.clients.turn import MODEL
from rtp_llm.testing.server.agent_turn import open_loopback
from rtp_llm.testing.server_processes import REAL, ROOT, TIMEOUT, process

# What the libraries would send or fetch besides.
_SWITCHES = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}


def main(library: str, python: str, folder: str) -> None:
    open_loopback()
    model = ROOT / "example" / "demo_model"
    flags = ("--served-model-name", MODEL, "--task", "all")
    with process(*flags, command=REAL, model=model) as server:
        done = subprocess.run(
            [python, "-m", "rtp_llm.testing.clients.turn", library, server.url],
            cwd=folder,
            env={"PATH": os.environ["PATH"], "HOME": folder, "PYTHONPATH": str(ROOT), **_SWITCHES},
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        said = {"code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
        print(json.dumps(said | {"server": server.stderr}))


if __name__ == "__main__":
    main(*sys.argv[1:])
