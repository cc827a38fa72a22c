# SPDX-License-Identifier: Apache-2.0
"""Conversations in a terminal: `rtp-llm chat` and `rtp-llm run`."""
