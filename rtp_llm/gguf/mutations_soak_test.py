# SPDX-License-Identifier: Apache-2.0
"""50,000 headers changed at random."""

from __future__ import annotations

from rtp_llm.testing.gguf.mutations import read_mutated


def test_many_changed_headers_are_read_or_refused(tmp_path):
    verdicts = read_mutated(tmp_path, 50_000, seed=31)
    assert min(verdicts[True], verdicts[False]) > 2_500, verdicts
