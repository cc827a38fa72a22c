# SPDX-License-Identifier: Apache-2.0
"""The official OpenAI client against the wheel, installed in an empty environment."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from rtp_llm.testing.server_processes import ROOT, process
from tools.wheel import installed

DEMO = ROOT / "example" / "demo_model"
DRAFTS = ("--speculative", "eagle3", "--speculative-model", str(ROOT / "example/demo_draft_head"))
ASK: Any = [{"role": "user", "content": "What is 12 + 30?"}]


@pytest.fixture(scope="module", name="environment")
def _environment(tmp_path_factory: pytest.TempPathFactory) -> installed.Installed:
    wheel = installed.find_wheel(Path("rtp_llm/rtp_llm_cpu"))
    return installed.install(wheel, tmp_path_factory.mktemp("environment"))


@pytest.fixture(scope="module", name="url")
def _url(environment: installed.Installed) -> Iterator[str]:
    command = [str(environment.command), "serve"]
    clean = installed.clean_environment()
    with process("--num-threads", "1", command=command, model=DEMO, base=clean) as server:
        yield f"{server.url}/v1"


BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
EXAMPLES = [block for block in BLOCKS if "from rtp_llm import" in block]


@pytest.mark.parametrize("example", EXAMPLES, ids=["chat", "similarity"])
def test_the_offline_examples_of_the_readme_in_an_empty_folder(
    example: str, environment: installed.Installed, tmp_path: Path
) -> None:
    shutil.copytree(DEMO, tmp_path / "demo_model")
    done = subprocess.run(
        [environment.python, "-c", example],
        cwd=tmp_path,
        env=installed.clean_environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (promised,) = re.findall(r"# (.*)\n$", example)
    assert done.stdout == f"{promised}\n"


def test_the_demo_drafts_by_its_head(environment: installed.Installed) -> None:
    """As `./dev serve` starts it."""
    command = [str(environment.command), "serve"]
    flags = ("--num-threads", "1", "--speculative-adaptive", "0", *DRAFTS)
    clean = installed.clean_environment()
    with process(*flags, command=command, model=DEMO, base=clean) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
        answer = client.chat.completions.create(model="demo_model", messages=ASK)
        assert "42" in (answer.choices[0].message.content or "")
        assert answer.usage and answer.usage.completion_tokens_details
        assert answer.usage.completion_tokens_details.accepted_prediction_tokens


def test_sync(url: str) -> None:
    client = openai.OpenAI(base_url=url, api_key="none")
    model = client.models.list().data[0].id
    answer = client.chat.completions.create(model=model, messages=ASK)
    assert "42" in (answer.choices[0].message.content or "")
    done = client.completions.create(model=model, prompt="12 + 30", max_tokens=4)
    assert done.usage and done.usage.completion_tokens


def test_streaming(url: str) -> None:
    client = openai.OpenAI(base_url=url, api_key="none")
    usage = {"include_usage": True}
    stream = client.chat.completions.create(
        model="demo_model", messages=ASK, stream=True, stream_options=usage
    )
    chunks = list(stream)
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "42" in "".join(texts)
    assert chunks[-1].usage and chunks[-1].usage.completion_tokens


def test_async(url: str) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
            create = client.chat.completions.create
            answers = await asyncio.gather(
                *(create(model="demo_model", messages=ASK) for _ in range(8))
            )
            stream = await create(model="demo_model", messages=ASK, stream=True)
            parts = [part.choices[0].delta.content or "" async for part in stream]
            return [answer.choices[0].message.content or "" for answer in answers] + [
                "".join(parts)
            ]

    texts = asyncio.run(ask())
    assert len(texts) == 9 and len(set(texts)) == 1 and "42" in texts[0]
