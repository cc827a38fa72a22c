# SPDX-License-Identifier: Apache-2.0
"""The CPU's wheel in an empty environment: it installs, imports, loads and runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.wheel import installed

WHEEL = installed.find_wheel(Path("rtp_llm/rtp_llm_cpu"))


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> installed.Installed:
    return installed.install(WHEEL, tmp_path_factory.mktemp("environment"))


def test_installs_and_imports(environment: installed.Installed) -> None:
    program = (
        "import sys, rtp_llm, rtp_llm.request.sampling_params\n"
        "assert 'torch' not in sys.modules\n"
        "import json, pathlib, torch\n"
        "from rtp_llm import native, ops\n"
        "build = json.loads((pathlib.Path(rtp_llm.__file__).parent / '_build.json').read_text())\n"
        "x = torch.ones(2, 8)\n"
        "assert torch.equal(ops.rms_norm(x, torch.ones(8), 0.0), x)\n"
        "assert torch.ops.rtp_llm.schema_hash() == build['schema_hash']\n"
        "native.load_runtime().SchedulerConfig\n"
        "print(rtp_llm.__file__)\n"
    )
    printed = environment.run(environment.python, "-c", program)
    assert printed.startswith(str(environment.packages))


def test_operator_library_finds_torch_by_its_run_path(environment: installed.Installed) -> None:
    library = environment.packages / "rtp_llm" / "lib" / "librtp_llm_cpu.so"
    environment.run(environment.python, "-c", f"import ctypes; ctypes.CDLL({str(library)!r})")


def test_command_runs(environment: installed.Installed) -> None:
    assert "serve" in environment.run(environment.command, "--help")
