# SPDX-License-Identifier: Apache-2.0
"""Prepares bodies in processes of their own."""
