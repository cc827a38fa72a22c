"""Prefill and decode on different workers: one computes a prompt, another one goes on with it."""
