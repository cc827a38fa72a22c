# SPDX-License-Identifier: Apache-2.0
"""The engine process on a CPU that multiplies FP8."""

from __future__ import annotations

import sys

from rtp_llm.engine.process.main import main
from rtp_llm.testing.fp8_products import multiply_fp8_on_cpu, round_products_once

if __name__ == "__main__":
    multiply_fp8_on_cpu()
    round_products_once()
    sys.exit(main())
