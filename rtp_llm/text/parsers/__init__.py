# SPDX-License-Identifier: Apache-2.0
"""From generated text to what it means: reasoning, tool calls and the answer."""
