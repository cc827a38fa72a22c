# SPDX-License-Identifier: Apache-2.0
"""Gemma 4, whose layers differ from each other in more than their windows."""
