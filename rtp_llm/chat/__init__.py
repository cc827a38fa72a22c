"""Conversations in a terminal: `rtp-llm chat` and `rtp-llm run`."""
