# SPDX-License-Identifier: Apache-2.0
"""What every test file finds: many files share one process."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# Collections that walk all objects took a sixth of the time: a million of imported modules, and
# what libraries keep of earlier tests. Such a pause may also be taken for a template that is slow.
gc.disable()
_OLDEST_THRESHOLD = 50  # 10 by default


def pytest_collection_finish() -> None:
    """All test files are imported, and what they imported stays."""
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], _OLDEST_THRESHOLD)
    gc.enable()


# Tests that import what only a device's own wheel or machine has.
collect_ignore_glob = []
if os.environ.get("RTP_LLM_TESTED_DEVICE") != "xpu":  # Bazel's targets of these kernels set it
    collect_ignore_glob.append("rtp_llm/kernels/xpu/*")
if importlib.util.find_spec("triton") is None:
    collect_ignore_glob.append("rtp_llm/kernels/triton/*/*")


@pytest.fixture(autouse=True, scope="module")
def _state_of_the_process() -> Iterator[None]:
    """Undoes what a file did to the environment, to PyTorch's threads and to its default dtype."""
    environment = dict(os.environ)
    torch = sys.modules.get("torch")  # not imported for those who do without
    before = (torch.get_num_threads(), torch.get_default_dtype()) if torch else None
    yield
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    if torch and before:
        torch.set_num_threads(before[0])
        torch.set_default_dtype(before[1])


@pytest.fixture
def on_the_cpu() -> Iterator[None]:
    """For tests of the host's part, which rtp_llm.testing.gpu runs on a GPU machine, too."""
    import torch

    with torch.device("cpu"):
        yield


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """A folder for temporary files, its name short enough for the sockets in it.

    The path of a Unix socket has at most 107 bytes, and sandboxes have longer folders.
    """
    with tempfile.TemporaryDirectory(prefix="rtp-llm-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def forked_processes() -> Iterator[None]:
    """Engines and ranks are forked from a process that has imported torch, to start quickly."""
    from rtp_llm.engine.client import launch
    from rtp_llm.testing.fork_server import ENGINES, fork_server, forking_subprocess
    from rtp_llm.worker.ranks import rank_processes

    with pytest.MonkeyPatch.context() as patch:
        for module in (launch, rank_processes):
            patch.setattr(module, "subprocess", forking_subprocess(fork_server(*ENGINES)))
        yield
