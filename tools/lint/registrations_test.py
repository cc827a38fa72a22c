# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from tools.lint import registrations


def _glue(root: Path, name: str, count: int) -> None:
    path = root / registrations.KERNELS / name
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"  glue::implement<&kernel_{number}>(library);\n" for number in range(count)]
    path.write_text("// Registers kernels.\n" + "".join(lines))


def test_registrations_are_counted_by_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _glue(tmp_path, "cpu/gemm/linear_glue.cc", 2)
    _glue(tmp_path, "cuda/norm/norm.cc", 0)
    _glue(tmp_path, "xpu/bridge/bridge_ops.cc", 30)
    (tmp_path / registrations.KERNELS / "common").mkdir()
    (tmp_path / registrations.KERNELS / "common" / "schema.cc").write_text(
        'glue::implement_uncounted<schema_hash>(library, "schema_hash");\n'
    )
    expected = {
        "rtp_llm/kernels/common/schema.cc": 1,
        "rtp_llm/kernels/cpu/gemm/linear_glue.cc": 2,
    }
    assert registrations.counts(tmp_path) == expected
    assert registrations.check(tmp_path) == []
    assert capsys.readouterr().out == "3 kernels are registered by hand, of at most 25\n"


def test_too_many_registrations_are_refused(tmp_path: Path) -> None:
    _glue(tmp_path, "cpu/a_glue.cc", registrations.MAX_REGISTRATIONS)
    assert registrations.check(tmp_path) == []
    _glue(tmp_path, "xpu/b_glue.cc", 1)
    (complaint,) = registrations.check(tmp_path)
    assert complaint.startswith("26 kernels are registered by hand; at most 25 may be: mark new")
    assert complaint.endswith("rtp_llm/kernels/cpu/a_glue.cc 25, rtp_llm/kernels/xpu/b_glue.cc 1")
