# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from rtp_llm import compat, ops

MODULES = (
    "attention_inputs",
    "cache_layout",
    "fused_rope",
    "fused_rope_base",
    "fused_rope_params",
    "moe_gates",
    "rope_inplace",
    "rope_style",
)


@pytest.mark.parametrize("module", MODULES)
def test_old_import_path_is_the_new_module_and_warns_where_it_is_imported(module: str) -> None:
    sys.modules.pop(f"rtp_llm.ops.{module}", None)
    with pytest.warns(DeprecationWarning, match=f"is now rtp_llm.compat.{module}"):
        old = importlib.import_module(f"rtp_llm.ops.{module}")
    new = importlib.import_module(f"rtp_llm.compat.{module}")
    for name in (name for name in vars(new) if not name.startswith("_")):
        assert getattr(old, name) is getattr(new, name)
    with pytest.raises(AttributeError):
        old.no_such_name  # noqa: B018


def test_warning_names_the_line_of_the_import(tmp_path: Path) -> None:
    script = tmp_path / "engine.py"
    script.write_text("from rtp_llm.ops.rope_style import RopeStyle\nprint(RopeStyle.Yarn)\n")
    done = subprocess.run(
        [sys.executable, "-Wdefault::DeprecationWarning", script], capture_output=True, text=True
    )
    assert done.stdout.strip() == "5", done.stderr
    assert f"{script}:1: DeprecationWarning: rtp_llm.ops.rope_style" in done.stderr


@pytest.mark.parametrize("name", compat.__all__)
def test_names_of_the_package_ops_are_those_of_compat(name: str) -> None:
    vars(ops).pop(name, None)
    with pytest.warns(DeprecationWarning, match="is now rtp_llm.compat"):
        assert getattr(ops, name) is getattr(compat, name)
    assert name in dir(ops)
