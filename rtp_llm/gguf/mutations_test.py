# SPDX-License-Identifier: Apache-2.0
"""Headers changed at random; mutations_soak_test.py reads a hundred times as many."""

from __future__ import annotations

from rtp_llm.gguf import open_model
from rtp_llm.testing.gguf.mutations import read_mutated, whole_file


def test_changed_headers_are_read_or_refused(tmp_path):
    (tmp_path / "whole.gguf").write_bytes(whole_file())
    assert len(open_model(tmp_path / "whole.gguf").tensors) == 4
    verdicts = read_mutated(tmp_path, 500, seed=29)
    assert min(verdicts[True], verdicts[False]) > 25, verdicts
