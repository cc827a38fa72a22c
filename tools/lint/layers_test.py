# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from tools.lint import layers


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("rtp_llm/server/app.py", "from rtp_llm.text.tokenizer import Tokenizer\n"),
        ("rtp_llm/server/app.py", "from rtp_llm.engine.client.engine_client import EngineClient\n"),
        ("rtp_llm/models/decoders/llama.py", "from rtp_llm import layers\n"),
        ("rtp_llm/cli.py", "from rtp_llm import __version__\n"),
        ("rtp_llm/ops/norm/norm.py", "import torch\nfrom rtp_llm.ops import schema\n"),
        ("rtp_llm/ops/norm/norm_test.py", "from rtp_llm.models import llama\n"),
        ("rtp_llm/device/cuda.py", "import torch\ntorch.cuda.synchronize()\n"),
        ("rtp_llm/device/cuda_test.py", "x = 'CUDA_VISIBLE_DEVICES'\n"),
        ("rtp_llm/kernels/cuda/norm_test.py", "import torch\ntorch.cuda.is_available()\n"),
        ("rtp_llm/testing/gpu.py", "from rtp_llm.engine import x\nimport torch\ntorch.cuda\n"),
        ("rtp_llm/ops/norm/norm_test.py", "from rtp_llm.testing import gpu\n"),
        ("rtp_llm/layers/a.py", "x = hasattr(layer, 'cuda'), getattr(torch, name)\n"),
        ("tools/x.py", "from rtp_llm.engine.engine import Engine\n"),
    ],
)
def test_allowed(path: str, text: str) -> None:
    assert list(layers.of_python(path, text)) == []


@pytest.mark.parametrize(
    ("path", "text", "complaint"),
    [
        ("rtp_llm/ops/norm/norm.py", "from rtp_llm.layers import x\n", "not below it"),
        ("rtp_llm/ops/norm/norm.py", "from rtp_llm import compat\n", "not below it"),
        ("rtp_llm/ops/norm/norm.py", "from rtp_llm.testing import gpu\n", "not below it"),
        ("rtp_llm/text/a.py", "def f():\n    from rtp_llm import engine\n", "a.py:2: text imports"),
        ("rtp_llm/device/a.py", "import rtp_llm.ops\n", "device imports rtp_llm.ops"),
        ("rtp_llm/server/a.py", "from rtp_llm.engine.engine import Engine\n", "reaches into"),
        ("rtp_llm/cellar/a.py", "from rtp_llm.ops import norm\n", "not in the table"),
        ("rtp_llm/layers/a.py", "import torch\ntorch.cuda.empty_cache()\n", "torch.cuda outside"),
        ("rtp_llm/layers/a.py", "from torch.xpu import Stream\n", "torch.xpu outside"),
        ("benchmark/a.py", "import torch\ntorch.cuda.Event()\n", "benchmark/a.py:2: torch.cuda"),
        ("rtp_llm/engine/a_test.py", "x = hasattr(torch, 'xpu')\n", "torch.xpu outside"),
        ("rtp_llm/engine/a.py", "getattr(torch, 'cuda', None)\n", "torch.cuda outside"),
        ("rtp_llm/engine/a.py", "import os\nos.environ['ZE_AFFINITY_MASK']\n", "a.py:2: ZE_AFF"),
        ("example/a.py", "x = f'CUDA_VISIBLE_DEVICES={n}'\n", "CUDA_VISIBLE_DEVICES outside"),
    ],
)
def test_refused(path: str, text: str, complaint: str) -> None:
    assert complaint in " ".join(layers.of_python(path, text))


def test_torch_in_the_runtime() -> None:
    text = "#include <vector>\n#include <torch/csrc/stable/tensor.h>\n"
    assert list(layers.of_cpp("rtp_llm/cpp/cache/pool.cc", text))
    assert not list(layers.of_cpp("rtp_llm/cpp/pybind/runtime.cc", text))
    assert not list(layers.of_cpp("rtp_llm/kernels/common/glue.cc", text))


def test_load_from_packages() -> None:
    assert list(layers.of_starlark("x/BUILD", 'load("@pip_cuda//:defs.bzl", "PYTHON")\n'))
    assert not list(layers.of_starlark("x/BUILD", 'load("//bazel:defs.bzl", "rtp_py_test")\n'))


def test_table_has_no_cycle() -> None:
    """A folder that can reach itself would make "down" meaningless."""
    done: set[str] = set()

    def visit(folder: str, above: tuple[str, ...]) -> None:
        assert folder not in above, f"{' -> '.join([*above, folder])}"
        if folder not in done:
            for below in layers.MAY_IMPORT[folder]:
                visit(below, (*above, folder))
            done.add(folder)

    for folder in layers.MAY_IMPORT:
        visit(folder, ())
