# SPDX-License-Identifier: Apache-2.0
"""OpenAI's Responses API: items in, items and events out, and a store of responses."""
