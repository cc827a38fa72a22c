# SPDX-License-Identifier: Apache-2.0
"""API keys: who sends a request, and which models and how much a key may use."""
