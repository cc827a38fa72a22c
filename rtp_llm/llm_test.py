# SPDX-License-Identifier: Apache-2.0
"""Tests of offline generation: texts in, texts out, over a tiny model with a real tokenizer."""

from __future__ import annotations

import functools
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from rtp_llm import LLM, SamplingParams
from rtp_llm.config.settings import SettingsError
from rtp_llm.engine.messages import EngineDeadError
from rtp_llm.terminal.progress_line import ProgressLine
from rtp_llm.testing.engine.tiny_llm import GREEDY, SMALL, save_folder
from rtp_llm.text.generation_defaults import GenerationDefaults


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Any:
    with LLM(folder, **SMALL) as made:
        yield made


def test_texts_and_ids_give_the_same_and_come_in_order(llm):
    texts = ["What is 12 + 30?", "Once upon", "你好"]
    outputs = llm.generate(texts, GREEDY)
    assert [output.prompt for output in outputs] == texts
    ids = [llm.tokenizer.encode(text) for text in texts]
    again = llm.generate(ids, GREEDY)
    for output, same, prompt in zip(outputs, again, ids, strict=True):
        assert output.outputs == same.outputs
        assert output.prompt_token_ids == same.prompt_token_ids == prompt
        assert same.prompt is None
        completion = output.outputs[0]
        assert completion.finish_reason in ("stop", "length")
        assert len(completion.token_ids) <= 12
    single = llm.generate(texts[1], GREEDY)
    assert single[0].outputs == outputs[1].outputs
    assert llm.generate(ids[1], GREEDY)[0].outputs == outputs[1].outputs
    assert llm.generate([], GREEDY) == []


def test_arrays_and_tensors_are_token_ids(llm):
    ids = llm.tokenizer.encode("Once upon")
    (expected,) = llm.generate(ids, GREEDY)
    numbers = np.array(ids)
    for prompts in (numbers, list(numbers), [numbers], torch.tensor(ids), numbers[None], (ids,)):
        assert llm.generate(prompts, GREEDY) == [expected]
    assert llm.generate(np.stack([numbers, numbers]), GREEDY) == [expected, expected]


@pytest.mark.parametrize(
    "prompts",
    [
        b"ab",
        [b"ab"],
        [[1.5]],
        np.ones(3),
        7,
        {"a": 1},
        [None],
        [True, False],
        np.array([True]),
        {"prompt_token_ids": [True]},
        {"prompt": None},
        {"prompt": 5},
    ],
)
def test_what_is_no_prompt_is_refused(llm, prompts):
    with pytest.raises(TypeError, match=r"expected a text|neither a text nor a list|must be texts"):
        llm.generate(prompts, GREEDY)


def test_prompts_come_in_the_forms_of_vllm(llm):
    text = "Once upon"
    ids = llm.tokenizer.encode(text)
    (expected,) = llm.generate(text, GREEDY)
    for prompts in (
        {"prompt": text},
        [{"prompt": text}],
        {"prompt": text, "prompt_token_ids": ids},
        {"prompt": text, "multi_modal_data": None},
        {"prompt": text, "cache_salt": "tenant"},
    ):
        assert llm.generate(prompts, GREEDY) == [expected]
    for prompts in ({"prompt_token_ids": ids}, [{"prompt_token_ids": tuple(ids)}]):
        (output,) = llm.generate(prompts, GREEDY)
        assert (output.prompt, output.outputs) == (None, expected.outputs)
    mixed = llm.generate([text, ids, {"prompt": text}, {"prompt_token_ids": ids}], GREEDY)
    assert [output.outputs for output in mixed] == [expected.outputs] * 4
    with pytest.raises(ValueError, match="multi_modal_data is not supported: only text"):
        llm.generate({"prompt": text, "multi_modal_data": {"image": 1}}, GREEDY)


def test_without_max_tokens_there_are_sixteen_as_in_vllm(llm, monkeypatch):
    endless = SamplingParams(temperature=0, ignore_eos=True)
    (output,) = llm.generate("Once", endless)
    assert len(output.outputs[0].token_ids) == 16
    monkeypatch.setattr(llm.tokenizer, "defaults", GenerationDefaults())
    assert len(llm.generate("Once")[0].outputs[0].token_ids) <= 16
    full = llm.ready.max_model_len
    (output,) = llm.generate([[5] * (full - 3)], endless)
    assert len(output.outputs[0].token_ids) == 3
    (output,) = llm.chat([{"role": "user", "content": "Hello"}], endless)
    assert len(output.outputs[0].token_ids) == full - len(output.prompt_token_ids)
    free = msgspec.structs.replace(endless, max_tokens=None)
    (output,) = llm.generate("Once", free)
    assert len(output.outputs[0].token_ids) == full - len(output.prompt_token_ids)


def test_a_truncated_prompt_keeps_its_last_tokens(llm):
    ids = llm.tokenizer.encode("What is 12 + 30?")
    params = msgspec.structs.replace(GREEDY, truncate_prompt_tokens=3)
    (output,) = llm.generate("What is 12 + 30?", params)
    assert output.prompt_token_ids == ids[-3:]
    assert output.outputs == llm.generate([ids[-3:]], GREEDY)[0].outputs
    long = msgspec.structs.replace(GREEDY, truncate_prompt_tokens=-1)
    (output,) = llm.generate("a" * 9999, long)
    assert len(output.prompt_token_ids) == llm.ready.max_model_len - GREEDY.max_tokens


def test_special_tokens_and_the_stop_string_are_shown_when_asked_for(llm):
    (special,) = llm.tokenizer.encode("<|im_start|>", False)
    forced = {"temperature": 0, "max_tokens": 2, "logit_bias": {special: 100.0}}
    assert llm.generate("a", SamplingParams(**forced))[0].outputs[0].text == ""
    shown = SamplingParams(**forced, skip_special_tokens=False)
    assert llm.generate("a", shown)[0].outputs[0].text == "<|im_start|>" * 2
    shown = SamplingParams(
        **forced, skip_special_tokens=False, stop="start|", include_stop_str_in_output=True
    )
    assert llm.generate("a", shown)[0].outputs[0].text == "<|im_start|"


def test_the_text_continues_the_prompt(llm):
    completion = llm.generate("What is 12", GREEDY)[0].outputs[0]
    ids = llm.tokenizer.encode("What is 12")
    whole = llm.tokenizer.decode(ids + completion.token_ids)
    assert whole == "What is 12" + completion.text


def test_without_parameters_the_models_own_defaults_hold(llm):
    first, second = (llm.generate("Once")[0].outputs[0] for _ in range(2))
    assert first.token_ids == second.token_ids
    assert len(first.token_ids) <= 5


def test_all_defaults_of_generation_config_are_taken(llm, monkeypatch):
    content = {"temperature": 0.5, "top_k": 7, "top_p": 0.9, "min_p": 0.1, "max_new_tokens": 9999}
    content |= {"repetition_penalty": 1.5, "no_repeat_ngram_size": 3, "typical_p": 0.9}
    monkeypatch.setattr(llm.tokenizer, "defaults", GenerationDefaults.read(content))
    content["max_tokens"] = content.pop("max_new_tokens")
    assert llm.get_default_sampling_params() == SamplingParams(**content)
    # As on the server, so many tokens are what nobody asked for: the context is the end.
    (output,) = llm.generate("Once")
    room = llm.ready.max_model_len - len(output.prompt_token_ids)
    assert 0 < len(output.outputs[0].token_ids) <= room


def test_each_prompt_may_have_its_own_parameters(llm):
    params = [SamplingParams(max_tokens=i, ignore_eos=True) for i in (1, 2, 3)]
    outputs = llm.generate(["a", "b", "c"], params)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 2, 3]
    with pytest.raises(ValueError, match="2 sampling_params for 1 prompts"):
        llm.generate(["a"], params[:2])


def test_a_stop_string_ends_the_text_before_it(llm):
    long = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    free = llm.generate("Once upon", long)[0].outputs[0]
    stop = free.text[6:9]
    cut = llm.generate(
        "Once upon", SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, stop=(stop,))
    )[0].outputs[0]
    assert cut.text == free.text[: free.text.index(stop)]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)
    assert cut.token_ids == free.token_ids[: len(cut.token_ids)]
    assert len(cut.token_ids) < len(free.token_ids)
    assert not llm._engine.has_work
    llm._engine.check_integrity()


def test_the_tokenizers_end_of_sequence_stops_too(llm):
    end = llm.tokenizer.eos_token_ids[-1]
    assert end not in llm.ready.eos_token_ids
    forced = SamplingParams(temperature=0, max_tokens=4, logit_bias={end: 100.0})
    completion = llm.generate("a", forced)[0].outputs[0]
    assert (completion.text, completion.token_ids) == ("", [end])
    assert (completion.finish_reason, completion.stop_reason) == ("stop", end)


def test_several_sequences_and_logprobs(llm):
    params = SamplingParams(n=3, seed=1, max_tokens=6, logprobs=2, prompt_logprobs=1)
    output = llm.generate("What is", params)[0]
    assert [completion.index for completion in output.outputs] == [0, 1, 2]
    for completion in output.outputs:
        assert len(completion.logprobs) == len(completion.token_ids)
        assert completion.cumulative_logprob < 0
    assert output.prompt_logprobs[0] is None
    assert llm.generate([[5]], params)[0].prompt_logprobs == [None]
    assert [e.token_id for e in output.prompt_logprobs[1:]] == output.prompt_token_ids[1:]
    assert llm.generate("a", GREEDY)[0].outputs[0].cumulative_logprob is None


def test_chat_goes_through_the_template(llm):
    messages = [{"role": "user", "content": "Hello"}]
    text = llm.tokenizer.apply_chat_template(messages)
    outputs = llm.chat(messages, GREEDY)
    assert outputs[0].prompt == text
    assert outputs[0].prompt_token_ids == llm.tokenizer.encode(text, add_special_tokens=False)
    several = llm.chat([messages, messages], GREEDY)
    assert [o.outputs for o in several] == [outputs[0].outputs] * 2
    assert several[1].cached_tokens >= 0


def test_a_chat_may_continue_its_last_message_and_bring_a_template(llm):
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Once"}]
    (output,) = llm.chat(messages, GREEDY, continue_final_message=True)
    assert output.prompt.endswith("<|im_start|>assistant\nOnce")
    (output,) = llm.chat(messages, GREEDY, add_generation_prompt=False)
    assert output.prompt.endswith("Once<|im_end|>\n")
    (output,) = llm.chat(messages, GREEDY, chat_template="{{ messages[1].content }}{{ x }}", x=1)
    assert output.prompt == "Once1"


def test_words_and_ids_that_must_not_be_generated(llm):
    free = llm.generate("Once upon", GREEDY)[0].outputs[0]
    (upon,) = llm.tokenizer.encode(" upon", False)
    forced = msgspec.structs.replace(GREEDY, logit_bias={upon: 100.0})
    assert llm.generate("Once", forced)[0].outputs[0].text == " upon" * 12
    banned = msgspec.structs.replace(forced, bad_words=["upon"])
    assert "upon" not in llm.generate("Once", banned)[0].outputs[0].text
    allowed = msgspec.structs.replace(GREEDY, allowed_token_ids=free.token_ids[:1])
    (output,) = llm.generate("Once upon", allowed)
    assert set(output.outputs[0].token_ids) == set(free.token_ids[:1])
    named = msgspec.structs.replace(GREEDY, logprob_token_ids=[9, 7])
    (output,) = llm.generate("Once upon", named)
    assert [i for i, _ in output.outputs[0].logprobs[0].top] == [9, 7]
    with pytest.raises(ValueError, match="allowed_token_ids: token id 99999"):
        llm.generate("a", msgspec.structs.replace(GREEDY, allowed_token_ids=[99999]))


def test_more_prompts_than_the_queue_holds(folder):
    with LLM(folder, max_running_requests=4, max_queued_requests=8, **SMALL) as small:
        outputs = small.generate([f"prompt {i}" for i in range(40)], GREEDY)
    assert all(output.outputs[0].finish_reason for output in outputs)
    with pytest.raises(EngineDeadError, match="closed"):
        small.generate("a")


def test_logits_processors_are_called(llm):
    def never_odd(logits: torch.Tensor, rows: Any) -> None:
        logits[:, 1::2] = -torch.inf

    outputs = llm.generate(["a", "b"], GREEDY, logits_processors=[never_odd])
    assert all(t % 2 == 0 for o in outputs for t in o.outputs[0].token_ids)


@pytest.mark.parametrize(
    ("prompt", "params", "words"),
    [
        ("", GREEDY, "prompt '': the prompt has no tokens"),
        ([3, 99999], GREEDY, r"prompt \[3, 99999\]: prompt: token id 99999"),
        ("a", SamplingParams(stop_token_ids=(99999,)), "'fine': stop_token_ids: token id 99999"),
        ("a", SamplingParams(logit_bias={99999: 1.0}), "'fine': logit_bias: token id 99999"),
        ("a" * 999, SamplingParams(max_tokens=9), r"prompt 'a{39}\.\.\.: .* longest sequence of"),
    ],
)
def test_a_bad_prompt_is_named_and_the_rest_dropped(llm, prompt, params, words):
    with pytest.raises(ValueError, match=words):
        llm.generate(["fine", prompt], params)
    assert not llm._engine.has_work
    assert llm.generate("fine", GREEDY)[0].outputs[0].token_ids


@pytest.mark.parametrize(
    "place",
    [
        "_requests._admission._scheduler.add",
        "_worker.sampler.add",
        "step",
        "_scheduler.schedule",
        "_worker.runner.forward",
        "_worker.sampler.submit",
        "_scheduler.commit",
    ],
)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_interrupt_leaves_the_engine_usable(llm, monkeypatch, place, after):
    """Ctrl-C between any two lines of a step, or while requests are added."""
    expected = llm.generate("a", GREEDY)
    *path, attribute, name = ["_engine", *place.split(".")]
    parent = functools.reduce(getattr, path, llm)
    owner = getattr(parent, attribute)
    original = getattr(owner, name)
    calls = []

    def interrupted(*arguments, **named):
        calls.append(1)
        result = original(*arguments, **named) if after or len(calls) != 3 else None
        if len(calls) == 3:
            raise KeyboardInterrupt
        return result

    double = _Double(owner, **{name: interrupted})
    monkeypatch.setattr(parent, attribute, double)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b", "c"], SamplingParams(max_tokens=50, ignore_eos=True))
    monkeypatch.undo()
    assert not llm._engine.has_work
    assert llm.generate("a", GREEDY) == expected
    llm._engine.check_integrity()


class _Double:
    """An object with some of its attributes exchanged, for those that cannot be patched."""

    def __init__(self, original: Any, **changed: Any) -> None:
        self._original, self._changed = original, changed

    def __getattr__(self, name: str) -> Any:
        return self._changed.get(name) or getattr(self._original, name)


def test_unknown_and_bad_settings_are_named(folder):
    with pytest.raises(SettingsError, match=r"max_seq_length: .* did you mean max_seq_len\?"):
        LLM(folder, max_seq_length=5)
    with pytest.raises(SettingsError, match=r"xyz: no such setting; there are model, .* dtype"):
        LLM(folder, xyz=5)
    with pytest.raises(SettingsError, match="dtype"):
        LLM(folder, dtype="float3")


def test_the_progress_line_shows_on_a_terminal_only():
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, show, drawn in ((Terminal(), True, True), (Terminal(), False, False)):
        line = ProgressLine(7, show, stream)
        line.tokens, line.prompts, line._drawn = 30, 2, 0.0
        line.draw()
        line.clear()
        assert ("2/7 prompts, 30 tokens" in stream.getvalue()) == drawn
    plain = io.StringIO()
    line = ProgressLine(7, True, plain)
    line._drawn = 0.0
    line.draw()
    line.clear()
    assert plain.getvalue() == ""


def test_the_package_gives_its_names_without_loading_torch():
    code = (
        "import sys, rtp_llm; assert rtp_llm.__version__; rtp_llm.SamplingParams;"
        "assert 'LLM' in dir(rtp_llm);"
        "print('torch' in sys.modules);"
        "rtp_llm.nothing"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False"
    assert "module 'rtp_llm' has no attribute 'nothing'" in done.stderr


def test_roles_are_for_servers(folder):
    with pytest.raises(ValueError, match="role: an LLM does everything itself"):
        LLM(folder, role="prefill")
    with pytest.raises(ValueError, match='kv_transport: not read with role="both"'):
        LLM(folder, kv_transport="tcp")
