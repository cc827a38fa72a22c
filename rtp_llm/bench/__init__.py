"""What `rtp-llm bench` measures: a server under load, and the engine by itself."""
