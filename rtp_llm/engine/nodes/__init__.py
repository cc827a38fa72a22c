# SPDX-License-Identifier: Apache-2.0
"""Nodes: machines that hold the ranks of one model together."""
