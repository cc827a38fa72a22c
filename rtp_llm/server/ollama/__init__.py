"""Ollama's API: chats and prompts in, lines of JSON out."""
