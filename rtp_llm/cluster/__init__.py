# SPDX-License-Identifier: Apache-2.0
"""Replicas on the machines of a Ray cluster, behind a router in the process that places them."""
