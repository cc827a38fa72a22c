# SPDX-License-Identifier: Apache-2.0
"""Stored formats of other makers, one file for each family: its tensors and its config."""
