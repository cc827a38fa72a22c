# SPDX-License-Identifier: Apache-2.0
"""Maps arguments that scripts pass to vLLM's `LLM` to our settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rtp_llm.config.settings import SettingsError, as_names, options

_RENAMED = {
    "max_model_len": "max_seq_len",
    "max_num_seqs": "max_running_requests",
    "max_num_batched_tokens": "max_batch_tokens_size",
    "block_size": "seq_size_per_block",
    "enable_prefix_caching": "reuse_cache",
    "async_scheduling": "enable_overlap",
    "device": "device_type",
    "runner": "task",
    "convert": "task",
}
# These values would make no difference; any other value is refused with the reason for the name.
_WITHOUT_EFFECT: dict[str, tuple[tuple[Any, ...], str]] = {
    "trust_remote_code": ((False,), "code of a model folder is never run here"),
    "enable_chunked_prefill": (
        (True,),
        "prompts are always prefilled in chunks where they must be",
    ),
    "tokenizer_mode": (("auto",), "there is one tokenizer"),
    "skip_tokenizer_init": ((False,), "the tokenizer is always loaded"),
    "enable_lora": ((False,), "adapters are not supported yet"),
    "swap_space": ((0,), "a preempted sequence is computed again; nothing is swapped"),
    "cpu_offload_gb": ((0,), "not supported yet; all weights are on the device"),
    "disable_log_stats": ((True, False), ""),
    "distributed_executor_backend": (("mp",), "ranks are processes of this machine, or of nnodes"),
}


def settings_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that arguments stand for; an argument that is None is left out, as in vLLM.

    Raises SettingsError where vLLM would do something that is not done here, and for an argument
    that is given twice, by its name here and there.
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        if value is None or _changes_nothing(name, value):
            continue
        if name == "enforce_eager":
            if options()["enable_graphs"].parse(name, value):
                _add(found, "enable_graphs", False, given)
            continue
        _add(found, _RENAMED.get(name, name), value, given)
    return found


def _changes_nothing(name: str, value: object) -> bool:
    if name not in _WITHOUT_EFFECT:
        return False
    harmless, reason = _WITHOUT_EFFECT[name]
    if value not in harmless:
        raise SettingsError(f"{name}={value!r}: {reason}; leave it out")
    return True


def _add(found: dict[str, Any], name: str, value: object, given: Mapping[str, Any]) -> None:
    if name in found:
        twice = [each for each in given if _RENAMED.get(each, each) == name]
        raise SettingsError(f"{' and '.join(twice or [name])} are one setting: give {name} alone")
    found[name] = value


@contextmanager
def hints_as_arguments() -> Iterator[None]:
    """Errors from inside name settings as arguments of Python, not as flags."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        if len(error.args) == 1 and isinstance(error.args[0], str):
            error.args = (as_names(error.args[0]),)
        raise
