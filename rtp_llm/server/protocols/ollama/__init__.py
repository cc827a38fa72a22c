# SPDX-License-Identifier: Apache-2.0
"""Ollama's API: chats and prompts in, lines of JSON out."""
