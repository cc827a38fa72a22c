"""The KV cache: how much memory it gets, and the tensors themselves."""
