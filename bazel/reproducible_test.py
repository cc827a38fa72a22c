# SPDX-License-Identifier: Apache-2.0
"""Clones at different paths build the same wheel; reproducible_soak_test.py compiles all of it.

One clone compiles a library of each kind anew: objects that differ would be linked into a wheel
that differs. On a machine without a cache both compile everything.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bazel.clone_for_tests import wheel_of_a_clone

# Units of several sources, kernels for each instruction set, generated glue, and torch's headers.
_OF_EACH_KIND = (
    "//rtp_llm/cpp/cache",
    "//rtp_llm/cpp/worker",
    "//rtp_llm/kernels/cpu:row_kernels",
    "//rtp_llm/kernels/cpu:norm_glue",
    "//rtp_llm/kernels/common:torch_glue",
)


def test_two_clones_give_the_same_wheel(tmp_path: Path) -> None:
    folders = tmp_path / "a", tmp_path / "another" / "much" / "longer" / "path"
    with ThreadPoolExecutor() as executor:
        compiled, other = executor.map(wheel_of_a_clone, folders, (_OF_EACH_KIND, ()))
    assert compiled == other
