"""Anthropic's Messages API: blocks in, blocks and events out."""
