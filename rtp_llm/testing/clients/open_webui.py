# SPDX-License-Identifier: Apache-2.0
"""What Open WebUI's retrieval sends: its embeddings of two engines, and its external reranker."""

from __future__ import annotations

from typing import Any

import httpx

from rtp_llm.testing.clients import turn as common

# As it sends them where ENABLE_FORWARD_USER_INFO_HEADERS is set.
HEADERS = {
    "Authorization": f"Bearer {common.KEY}",
    "X-OpenWebUI-User-Name": "Ada%20Lovelace",
    "X-OpenWebUI-User-Id": "7",
    "X-OpenWebUI-User-Email": "ada@example.org",
    "X-OpenWebUI-User-Role": "admin",
}


def turns(url: str) -> dict[str, Any]:
    body = {"input": common.TEXTS, "model": common.MODEL}
    asked = {
        "model": common.MODEL,
        "query": common.TEXTS[0],
        "documents": common.TEXTS[::-1],
        "top_n": len(common.TEXTS),
    }
    with httpx.Client(base_url=url, headers=HEADERS, timeout=None) as client:

        def post(path: str, body: dict[str, Any]) -> Any:
            answer = client.post(path, json=body)
            answer.raise_for_status()
            return answer.json()

        results = post("/v1/rerank", asked)["results"]
        return {
            "openai": [each["embedding"] for each in post("/v1/embeddings", body)["data"]],
            "ollama": post("/api/embed", body)["embeddings"],
            "ranked": [
                each["relevance_score"] for each in sorted(results, key=lambda each: each["index"])
            ],
        }
