"""API keys: who asks, what one may use, and how much of it."""
