# SPDX-License-Identifier: Apache-2.0
"""Heads over hidden states: sampled tokens, verified drafts, log-probabilities, vectors."""
