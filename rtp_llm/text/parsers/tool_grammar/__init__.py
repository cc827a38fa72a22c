# SPDX-License-Identifier: Apache-2.0
"""Grammars that make a model call tools, in its own form and as their schemas say."""
