# SPDX-License-Identifier: Apache-2.0
"""How the keys of M-RoPE are read, and which sections cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rtp_llm.layers import MropeConfig
from rtp_llm.models.raw_config import ModelConfigError, RawConfig
from rtp_llm.models.rope_config import read_mrope

INTERLEAVED = {"mrope_interleaved": True}


def read(tmp_path: Path, rope: dict[str, Any]) -> MropeConfig:
    return read_mrope(RawConfig(tmp_path, {"rope_scaling": rope}, {}), 64)


def test_both_layouts_are_read(tmp_path: Path) -> None:
    assert read(tmp_path, {"mrope_section": [8, 12, 12]}) == MropeConfig((8, 12, 12))
    found = read(tmp_path, {"mrope_section": [11, 11, 10], **INTERLEAVED})
    assert found == MropeConfig((11, 11, 10), interleaved=True)
    assert found.axes() == [0, 1, 2] * 10 + [0, 1]


@pytest.mark.parametrize(
    "rope",
    [
        {},
        {"mrope_section": 32},
        {"mrope_section": [16, 16]},
        {"mrope_section": [16, 16, 0]},
        {"mrope_section": [8, 8, 8]},
        {"mrope_section": [8, 12, "12"]},
        {"mrope_section": [8, 12, 12], **INTERLEAVED},
    ],
)
def test_other_sections_are_refused(tmp_path: Path, rope: dict[str, Any]) -> None:
    with pytest.raises(ModelConfigError, match="mrope_section"):
        read(tmp_path, rope)
