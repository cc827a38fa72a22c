# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode on different workers: one computes a prompt, another one continues it."""
