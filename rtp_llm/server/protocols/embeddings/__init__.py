# SPDX-License-Identifier: Apache-2.0
"""Embeddings, reranking, scores and labels, in the shapes of OpenAI, Cohere, TEI and vLLM."""
