# SPDX-License-Identifier: Apache-2.0
"""A run of schemathesis, with all its checks, against a server's /openapi.json."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

# A 400 that depends on two fields, or on the model, is none of a schema's business; every other
# answer to a body that fits the schema has to be a success.
_CONFIGURATION = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "400", "404", "429"]
"""

# A report says which field of which body it was.
_WHOLE = ("--output-sanitize", "false", "--output-truncate", "false")
_FLAGS = ("--checks", "all", "--suppress-health-check", "all", "--no-color", *_WHOLE)


def find_nothing(url: str, folder: Path, *flags: str) -> int:
    """How many cases ran; AssertionError with the report when a check found something."""
    (folder / "schemathesis.toml").write_text(_CONFIGURATION)
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"]
    done = subprocess.run(
        [*command, *_FLAGS, *flags],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    found = done.stdout[max(done.stdout.find("= FAILURES ="), 0) :]
    assert done.returncode == 0, found + done.stderr[-2000:]
    return int(re.findall(r"(\d+) generated", done.stdout)[0])
