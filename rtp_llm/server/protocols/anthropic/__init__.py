# SPDX-License-Identifier: Apache-2.0
"""Anthropic's Messages API: blocks in, blocks and events out."""
