# SPDX-License-Identifier: Apache-2.0
"""What becomes of hidden states: sampled tokens, verified drafts, log-probabilities, vectors."""
