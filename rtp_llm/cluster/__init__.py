# SPDX-License-Identifier: Apache-2.0
"""Replicas on the machines of a Ray cluster, served through a router in the driver process."""
