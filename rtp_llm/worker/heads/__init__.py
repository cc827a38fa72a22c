"""What becomes of hidden states: sampled tokens and log-probabilities."""
