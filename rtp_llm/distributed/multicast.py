# SPDX-License-Identifier: Apache-2.0
"""NVLink multicast stays off: some hosts and containers do not allow it, and then hang or crash."""

from __future__ import annotations

from collections.abc import Mapping

# Every launcher gives these to every rank, whatever the user's environment says.
NO_MULTICAST: Mapping[str, str] = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}


def check_no_multicast(environ: Mapping[str, str]) -> None:
    """Raise ValueError for a rank that lost one of these variables on its way."""
    for name, value in NO_MULTICAST.items():
        if environ.get(name) != value:
            raise ValueError(
                f"{name} is {environ.get(name, 'not set')} in this rank's environment and must be "
                f"{value}: NVLink multicast is not used; start ranks by rtp-llm serve or LLM(...)"
            )
