# SPDX-License-Identifier: Apache-2.0
"""instructor: answers of a schema by a tool call and by a response format, whole and streamed."""

from __future__ import annotations

from typing import Any

import instructor
import openai

from rtp_llm.testing.clients import turn as common

FIXED: dict[str, Any] = {
    "model": common.MODEL,
    "messages": [{"role": "user", "content": common.IN_JSON}],
    "response_model": common.Sum,
    "temperature": 0,
    "max_tokens": common.LENGTH,
    "max_retries": 0,
}


def turns(url: str) -> dict[str, Any]:
    api = openai.OpenAI(base_url=f"{url}/v1", api_key=common.KEY, max_retries=0)
    forms: dict[str, Any] = {}
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        completions = instructor.from_openai(api, mode=mode).chat.completions
        *_, streamed = completions.create_partial(**FIXED)
        forms[mode.name] = completions.create(**FIXED).model_dump()
        forms[f"{mode.name} streamed"] = streamed.model_dump()
    return forms
