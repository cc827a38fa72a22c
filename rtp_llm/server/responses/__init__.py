# SPDX-License-Identifier: Apache-2.0
"""OpenAI's Responses API: items in, items and events out, and the store of what was answered."""
