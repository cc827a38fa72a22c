# SPDX-License-Identifier: Apache-2.0
"""The HTTP process: connections, limits, keys, metrics, probes, draining, logs."""
