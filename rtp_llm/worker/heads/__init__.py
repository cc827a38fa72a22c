"""What becomes of hidden states: sampled tokens, verified drafts and log-probabilities."""
