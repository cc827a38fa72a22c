# SPDX-License-Identifier: Apache-2.0
"""The commands of `rtp-llm`: one module each, with `parser` and `main`, imported on demand."""
