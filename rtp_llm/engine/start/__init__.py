# SPDX-License-Identifier: Apache-2.0
"""Builds an engine: checks, memory, worker."""
