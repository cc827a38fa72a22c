# SPDX-License-Identifier: Apache-2.0
"""The announcement of a server that is ready."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rtp_llm import __version__
from rtp_llm.config.settings import Settings
from rtp_llm.engine.messages import EngineReady
from rtp_llm.server.endpoint.endpoint_tasks import endpoints_of
from rtp_llm.server.probes import try_line
from rtp_llm.text.parsers.registry import Detected

_MIB = 2**20


@dataclass(frozen=True)
class Start:
    """A successful start. `chat_template`: its origin; `syntax`: the formats of the model's tool
    calls and reasoning; `seconds`: the duration."""

    ready: EngineReady
    chat_template: str | None
    syntax: Detected
    seconds: float

    def text(self, settings: Settings, url: str) -> str:
        """The announcement as readable text of several lines."""
        ready, (name, *others) = self.ready, settings.model_names
        aliases = f" (also {', '.join(map(repr, others))})" if others else ""
        has_chat = self.chat_template is not None
        shown = has_chat and settings.page and settings.uds is None
        generates = "generate" in ready.tasks
        place = " in a browser, or" if shown and generates else ""
        syntax = (
            f"  chat template: {self.chat_template or 'none; ask /v1/completions'}\n"
            f"  {self.syntax.why}\n"
            if generates
            else ""
        )
        return (
            f"RTP-LLM {__version__} is ready: {url}\n"
            f"  model {name!r}{aliases}: {ready.architecture}, {ready.dtype}, quantization "
            f"{ready.quantization}, on {ready.device} with {ready.num_threads} threads; context "
            f"{ready.max_model_len} tokens\n"
            f"  weights {ready.weight_bytes / _MIB:.0f} MiB, KV cache "
            f"{ready.kv_cache_bytes / _MIB:.0f} MiB: {ready.num_blocks} blocks of "
            f"{ready.block_size} tokens, {self._capacity(settings)} tokens fit\n"
            f"{_task_line(ready)}{syntax}"
            f"{_role_line(settings, ready)}"
            f"  ready in {self.seconds:.1f} s\n"
            f"try it{place}:\n  {try_line(url, name, ready.tasks, chat=has_chat)}"
        )

    def fields(self, settings: Settings, url: str) -> dict[str, Any]:
        """The announcement as fields for JSON logs."""
        ready = self.ready
        return {
            "url": url,
            "model": settings.model_name,
            "architecture": ready.architecture,
            "device": ready.device,
            "dtype": ready.dtype,
            "quantization": ready.quantization,
            "max_model_len": ready.max_model_len,
            "weight_bytes": ready.weight_bytes,
            "kv_cache_bytes": ready.kv_cache_bytes,
            "kv_cache_blocks": ready.num_blocks,
            "kv_cache_tokens": self._capacity(settings),
            "chat_template": self.chat_template,
            "tool_call_parser": self.syntax.tool_calls,
            "reasoning_parser": self.syntax.reasoning,
            "start_seconds": round(self.seconds, 3),
        }

    def _capacity(self, settings: Settings) -> int:
        """The capacity of the KV cache in tokens; one block of each rank is only padding."""
        blocks = self.ready.num_blocks - settings.data_parallel_size
        return max(0, blocks) * self.ready.block_size


def _task_line(ready: EngineReady) -> str:
    """An additional line for models that do more than to generate, or something else."""
    if ready.tasks == ("generate",):
        return ""
    return f"  served for {', '.join(ready.tasks)}: {endpoints_of(ready.tasks)}\n"


def _role_line(settings: Settings, ready: EngineReady) -> str:
    """An additional line for prefill and decode workers."""
    if settings.role == "prefill":
        return f"  computes prompts for decode workers: --prefill-workers {ready.prefill_address}\n"
    if settings.role == "decode":
        return f"  has prompts computed by {settings.prefill_workers}\n"
    return ""
