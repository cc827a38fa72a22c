# SPDX-License-Identifier: Apache-2.0
"""Prompts and outputs of the Python API."""
