# SPDX-License-Identifier: Apache-2.0
"""Beam search: which continuations of a request's sequences are kept."""
