# SPDX-License-Identifier: Apache-2.0
"""Answers that obey a grammar, and thinking that ends in time: masks for the sampling head."""
