# SPDX-License-Identifier: Apache-2.0
"""Transports of blocks: the native one over TCP, and pull connectors over a library (RDMA)."""
