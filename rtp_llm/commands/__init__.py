# SPDX-License-Identifier: Apache-2.0
"""The commands of `rtp-llm`: a module each, with `parser` and `main`. Imported when they run."""
