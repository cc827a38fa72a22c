"""What becomes of hidden states: sampled tokens, verified drafts, log-probabilities, vectors."""
