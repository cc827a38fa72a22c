# SPDX-License-Identifier: Apache-2.0
"""Scripts that were written for vLLM's LLM run with this one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rtp_llm import LLM
from rtp_llm.config.settings import SettingsError
from rtp_llm.testing.engine.tiny_llm import GREEDY, SMALL, save_folder
from rtp_llm.vllm_arguments import hints_as_arguments, settings_of


def test_names_and_values_of_vllm() -> None:
    assert settings_of(
        {
            "max_model_len": 64,
            "max_num_seqs": 4,
            "gpu_memory_utilization": 0.9,
            "tensor_parallel_size": 1,
            "enforce_eager": True,
            "trust_remote_code": False,
            "quantization": None,
            "seed": 0,
            "swap_space": 0,
        }
    ) == {
        "max_seq_len": 64,
        "max_running_requests": 4,
        "gpu_memory_utilization": 0.9,
        "tensor_parallel_size": 1,
        "enable_graphs": False,
        "seed": 0,
    }
    assert settings_of({"enforce_eager": "off"}) == {}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"trust_remote_code": True},
            "trust_remote_code=True: code of a model folder is never run",
        ),
        ({"cpu_offload_gb": 4}, "cpu_offload_gb=4: not supported yet"),
        ({"enforce_eager": "maybe"}, "enforce_eager: 'maybe' is not on or off"),
        ({"max_model_len": 8, "max_seq_len": 8}, "max_model_len and max_seq_len are one setting"),
    ],
)
def test_what_would_be_something_else_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        settings_of(given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"chunked_prefill_size": 8}, "here it is max_batch_tokens_size$"),
        ({"enable_lora": True}, "enable_lora=True: adapters are not supported yet; leave it out"),
        ({"tokenizer": "/another"}, "the tokenizer comes from the model folder"),
        ({"nnodes": 2}, "^(?!.*--nnodes)"),
        ({"max_sequence_len": 8}, "did you mean max_seq_len"),
        ({"reserve_runtime_mem_mb": 64}, "^reserve_runtime_mem_mb is not supported on cpu"),
    ],
)
def test_hints_name_arguments(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as raised:
        LLM(save_folder(tmp_path), **SMALL, **given)
    assert "--" not in str(raised.value)


def test_hints_of_what_is_no_setting_stay() -> None:
    words = (
        '^run hf download NAME --local-dir X, set max_seq_len and role="both" or reuse_cache off$'
    )
    with pytest.raises(ValueError, match=words), hints_as_arguments():
        raise ValueError(
            "run hf download NAME --local-dir X, set --max-seq-len and --role both or "
            "--reuse-cache off"
        )


def test_a_script_of_vllm(tmp_path: Path) -> None:
    folder = save_folder(tmp_path)
    with LLM(
        model=str(folder),
        tokenizer=str(folder),
        max_model_len=128,
        gpu_memory_utilization=0.9,
        tensor_parallel_size=1,
        enforce_eager=True,
        trust_remote_code=False,
        **SMALL,
    ) as llm:
        assert llm.ready.max_model_len == 128
        tokenizer = llm.get_tokenizer()
        assert tokenizer.convert_tokens_to_ids("<|im_end|>") == tokenizer.eos_token_id
        params = llm.get_default_sampling_params()
        assert params.max_tokens == 5
        messages = [{"role": "user", "content": "Hello"}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        first, second = llm.generate([text, "Once upon"], GREEDY, lora_request=None)
        assert (first.finished, first.request_id) == (True, "0")
        assert second.request_id == "1"
        for output in (first, second):
            metrics = output.metrics
            times = metrics.queued_ts, metrics.scheduled_ts, metrics.first_token_ts
            assert (*times, metrics.last_token_ts) == tuple(sorted((*times, metrics.last_token_ts)))
            assert metrics.first_token_latency > 0 < metrics.arrival_time
            assert metrics.num_generation_tokens == len(output.outputs[0].token_ids)
            assert output.outputs[0].finished() and output.num_cached_tokens >= 0
        kwargs = {"enable_thinking": False}
        (chat,) = llm.chat(messages, GREEDY, chat_template_kwargs=kwargs, lora_request=None)
        assert chat.outputs[0].text == first.outputs[0].text
        for call in (llm.generate, llm.chat):
            with pytest.raises(ValueError, match="lora_request: adapters are not supported yet"):
                call(messages, lora_request=object())  # type: ignore[arg-type,operator]


def test_runner_and_convert_choose_the_task() -> None:
    assert settings_of({"runner": "pooling"}) == {"task": "pooling"}
    assert settings_of({"convert": "embed"}) == {"task": "embed"}
