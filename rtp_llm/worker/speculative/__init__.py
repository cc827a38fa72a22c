"""Speculative decoding: who proposes draft tokens."""
