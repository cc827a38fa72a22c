# SPDX-License-Identifier: Apache-2.0
"""API keys: who asks, what one may use, and how much of it."""
