# SPDX-License-Identifier: Apache-2.0
"""LangChain, instructor, LiteLLM, llama-index, Cohere and Open WebUI do their turns, offline.

The server, its engine and the demo model are real: it calls its tool, and answers by schemas. Where
a library asks for a schema by a tool, the demo model, which knows only its own, makes up numbers.
`./dev soak` installs the libraries.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

from rtp_llm.testing.clients.turn import Sum
from rtp_llm.testing.server_processes import run_without_network

CALL = ["calculator", {"expression": "123 + 456"}]
ANSWER = "123 + 456 = 579"
SUM = {"a": 12, "b": 30, "sum": 42}
_LOGGED = re.compile(r"path=(\S+) status=(\d+)")


def turns(library: str, folder: Path, requests: dict[str, int]) -> Any:
    """What the library gave; `requests` are all that the server got, by their paths."""
    python = os.environ.get("CLIENTS_PYTHON", "")
    assert python, "CLIENTS_PYTHON: an interpreter with deps/requirements_clients.txt (./dev soak)"
    driver = "rtp_llm.testing.clients.alone"
    said = run_without_network(driver, library, python, str(folder))
    reported = json.loads(said["stdout"].splitlines()[-1])
    assert reported["hosts"] == ["127.0.0.1"]
    assert Counter(_LOGGED.findall(said["server"])) == {(p, "200"): n for p, n in requests.items()}
    return reported["turns"]


def is_sum(form: dict[str, int]) -> bool:
    return bool(Sum.model_validate(form, strict=True))


def are_unit_vectors(*vectors: list[float]) -> bool:
    return all(math.isclose(math.hypot(*vector), 1, rel_tol=1e-4) for vector in vectors)


def test_langchain(tmp_path: Path) -> None:
    paths = {"/v1/chat/completions": 5, "/v1/responses": 5, "/v1/messages": 4, "/v1/embeddings": 2}
    said = turns("langchain", tmp_path, paths)
    house, garden, again = said.pop("vectors")
    assert house == again != garden and are_unit_vectors(house, garden)
    assert [*said] == ["chat", "responses", "messages"]
    for turn in said.values():
        assert (turn["calls"], turn["answer"]) == ([CALL], ANSWER)
        assert turn["forms"]["json_schema"] == turn["forms"].get("json_mode", SUM) == SUM
        assert is_sum(turn["forms"]["function_calling"])


def test_instructor(tmp_path: Path) -> None:
    forms = turns("instructor", tmp_path, {"/v1/chat/completions": 4})
    assert forms["JSON_SCHEMA"] == forms["JSON_SCHEMA streamed"] == SUM
    assert is_sum(forms["TOOLS"]) and is_sum(forms["TOOLS streamed"])


def test_litellm(tmp_path: Path) -> None:
    paths = {"/v1/chat/completions": 3, "/v1/messages": 3, "/v1/embeddings": 1}
    chat, messages, vectors = turns("litellm", tmp_path, paths).values()
    assert len(vectors) == 2 and are_unit_vectors(*vectors)
    assert chat == {"calls": [CALL], "answer": ANSWER, "form": SUM}
    assert is_sum(messages.pop("form"))
    assert messages == {"calls": [CALL], "answer": ANSWER}


def test_llama_index(tmp_path: Path) -> None:
    said = turns("llama_index", tmp_path, {"/v1/chat/completions": 8, "/v1/embeddings": 2})
    house, garden, again = said.pop("vectors")
    assert house == again != garden and are_unit_vectors(house, garden)
    assert is_sum(said["by tools"].pop("form"))
    assert said["by a schema"].pop("form") == SUM
    for turn in said.values():
        assert turn == {"calls": [CALL, CALL], "answer": ANSWER}


def test_cohere(tmp_path: Path) -> None:
    said = turns("cohere", tmp_path, {"/v2/embed": 1, "/v2/rerank": 1})
    house, garden = said["float"]
    assert are_unit_vectors(house, garden) and house != garden
    for numbers, small, bits in zip(said["float"], said["int8"], said["ubinary"], strict=True):
        assert small == [round(127 * each) for each in numbers]
        assert len(bits) == len(numbers) // 8
        assert bits[0] >> 7 == (numbers[0] > 0)
    (best, score), (other, less) = said["ranked"]
    assert (best, other) == (1, 0) and math.isclose(score, 1, rel_tol=1e-4) and less < score


def test_open_webui(tmp_path: Path) -> None:
    """By its request bodies: the application is not installed."""
    paths = {"/v1/embeddings": 1, "/api/embed": 1, "/v1/rerank": 1}
    said = turns("open_webui", tmp_path, paths)
    assert said["openai"] == said["ollama"] and are_unit_vectors(*said["openai"])
    less, score = said["ranked"]
    assert math.isclose(score, 1, rel_tol=1e-4) and less < score
