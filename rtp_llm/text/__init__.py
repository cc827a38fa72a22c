# SPDX-License-Identifier: Apache-2.0
"""Text to token ids and back: tokenizer, chat template, detokeniser, stop strings.

Knows nothing of the engine, the server or torch.
"""

from __future__ import annotations
