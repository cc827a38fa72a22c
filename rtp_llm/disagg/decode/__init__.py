# SPDX-License-Identifier: Apache-2.0
"""The decode side: asks prefill workers for prompts and loads their blocks."""
