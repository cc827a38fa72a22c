"""Running the model of one step: KV cache memory, forward pass, sampling."""
