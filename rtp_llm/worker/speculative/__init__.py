# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding: who proposes draft tokens."""
