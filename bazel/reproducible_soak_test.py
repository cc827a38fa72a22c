# SPDX-License-Identifier: Apache-2.0
"""Clones at different paths build the same wheel: one compiles everything, one uses the cache."""

from __future__ import annotations

from pathlib import Path

from bazel.clone_for_tests import wheel_of_a_clone


def test_two_clones_give_the_same_wheel(tmp_path: Path) -> None:
    compiled = wheel_of_a_clone(tmp_path / "a", ["//rtp_llm:rtp_llm_cpu"])
    other = wheel_of_a_clone(tmp_path / "another" / "much" / "longer" / "path")
    assert compiled == other
