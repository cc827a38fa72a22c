# SPDX-License-Identifier: Apache-2.0
"""What one step computes: one declaration, and what is made from it."""
