# SPDX-License-Identifier: Apache-2.0
"""The ranks of a model on several machines (nodes), and the messages between their nodes."""
