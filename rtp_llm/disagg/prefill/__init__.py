# SPDX-License-Identifier: Apache-2.0
"""The prefill side: computes prompts of decode workers and offers their blocks."""
