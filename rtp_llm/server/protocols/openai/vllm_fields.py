# SPDX-License-Identifier: Apache-2.0
"""Fields that vLLM writes into every complete answer, null unless requested.

`--response-compat vllm` adds them. As in vLLM, streams do not have them.
"""

from __future__ import annotations

_ANSWER: dict[str, None] = dict.fromkeys(
    ("service_tier", "system_fingerprint", "kv_transfer_params")
)
VLLM_CHAT: dict[str, None] = _ANSWER | dict.fromkeys(("prompt_logprobs", "prompt_token_ids"))
VLLM_CHAT_CHOICE: dict[str, None] = {"token_ids": None}
VLLM_MESSAGE: dict[str, None] = dict.fromkeys(
    ("refusal", "annotations", "audio", "function_call", "reasoning")
)
VLLM_COMPLETION = _ANSWER
VLLM_COMPLETION_CHOICE: dict[str, None] = dict.fromkeys(
    ("token_ids", "prompt_logprobs", "prompt_token_ids")
)
