# SPDX-License-Identifier: Apache-2.0
"""Prepares request bodies: parse, render, tokenise; long bodies in a separate process."""
