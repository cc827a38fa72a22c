# SPDX-License-Identifier: Apache-2.0
"""Tokenizers and chat templates of GGUF files, made from their metadata."""
