# SPDX-License-Identifier: Apache-2.0
"""Hybrid models, most of whose layers are gated delta nets with a state instead of a KV cache."""
