# SPDX-License-Identifier: Apache-2.0
"""Heads for scores or labels on decoders, and their fields of config.json."""
