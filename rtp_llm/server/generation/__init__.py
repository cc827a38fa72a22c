# SPDX-License-Identifier: Apache-2.0
"""Runs the jobs of a request on the engine and turns its tokens into text."""
