# SPDX-License-Identifier: Apache-2.0
"""Beam search from text to text."""

from __future__ import annotations

from typing import Any

import pytest

from rtp_llm import LLM, BeamSearchParams, SamplingParams
from rtp_llm.testing.engine.tiny_llm import SMALL, save_folder


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = save_folder(tmp_path_factory.mktemp("model"))
    with LLM(folder, dtype="float32", **SMALL) as made:
        yield made


def test_sequences_begin_with_the_prompt(llm: LLM) -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=6)
    outputs = llm.beam_search(["Once upon", [5, 6, 7]], params)
    assert [len(output.sequences) for output in outputs] == [3, 3]
    prompt = llm.tokenizer.encode("Once upon")
    for sequence in outputs[0].sequences:
        assert sequence.tokens[: len(prompt)] == prompt
        assert sequence.text == llm.tokenizer.decode(sequence.tokens)
        assert sequence.cum_logprob == sum(each.logprob for each in sequence.logprobs)
    sums = [each.cum_logprob / len(each.logprobs) for each in outputs[1].sequences]
    assert sums == sorted(sums, reverse=True)
    greedy = SamplingParams(temperature=0, max_tokens=6, logprobs=0)
    (alone,) = llm.generate([[5, 6, 7]], greedy)
    narrow = BeamSearchParams(beam_width=1, max_tokens=6)
    (sequence,) = llm.beam_search([[5, 6, 7]], narrow)[0].sequences
    stopped = alone.outputs[0].finish_reason == "stop"
    said = alone.outputs[0].token_ids
    assert sequence.tokens == [5, 6, 7, *(said[:-1] if stopped else said)]
    assert sequence.cum_logprob == pytest.approx(alone.outputs[0].cumulative_logprob, abs=1e-4)


def test_stop_tokens_are_given_where_they_are_asked_for(llm: LLM) -> None:
    (found,) = llm.beam_search([[5, 6, 7]], BeamSearchParams(beam_width=2, max_tokens=2))
    stop = found.sequences[0].tokens[3]
    given = {"beam_width": 2, "max_tokens": 2, "stop_token_ids": (stop,)}
    for included in (False, True):
        params = BeamSearchParams(**given, include_stop_str_in_output=included)
        (output,) = llm.beam_search([[5, 6, 7]], params)
        ended = [each for each in output.sequences if each.stop_reason == stop]
        assert ended
        for sequence in ended:
            assert sequence.finish_reason == "stop"
            assert (sequence.tokens[-1] == stop) == included
            assert len(sequence.logprobs) == len(sequence.tokens) - 3 + (not included)


def test_what_samples_have_beams_have(llm: LLM) -> None:
    given: Any = {"beam_width": 3, "max_tokens": 8, "repetition_penalty": 1.2}
    choice = BeamSearchParams(**given, structured_outputs={"choice": ["yes", "no"]})
    (found,) = llm.beam_search([[5, 6, 7]], choice)
    before = llm.tokenizer.decode([5, 6, 7])
    assert found.sequences
    assert {each.text for each in found.sequences} <= {before + "yes", before + "no"}
    (plain,) = llm.beam_search([[5, 6, 7]], BeamSearchParams(**given, ignore_eos=True))
    assert plain.sequences[0].text is not None
    stop = plain.sequences[0].text[len(before) + 2 :][:2]
    for included in (False, True):
        ends = {"stop": stop, "include_stop_str_in_output": included, "ignore_eos": True}
        (output,) = llm.beam_search([[5, 6, 7]], BeamSearchParams(**given, **ends))
        ended = [each for each in output.sequences if each.stop_reason == stop]
        assert ended
        assert all(str(each.text).endswith(stop) == included for each in ended)


def test_groups_widths_and_the_best(llm: LLM) -> None:
    given = {"beam_width": 4, "max_tokens": 4}
    diverse = BeamSearchParams(**given, num_beam_groups=2, diversity_penalty=1.0, n=3)
    narrowing = BeamSearchParams(**given, variable_num_beams=[4, 2])
    for params, count in ((diverse, 3), (narrowing, 2)):
        (output,) = llm.beam_search([[5, 6, 7]], params)
        assert len(output.sequences) == count


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("beam_width", 0),
        ("beam_width", 129),
        ("max_tokens", 0),
        ("temperature", 0.7),
        ("length_penalty", float("nan")),
        ("early_stopping", "always"),
        ("n", 3),
        ("num_beam_groups", 3),
        ("diversity_penalty", 0.5),
        ("variable_num_beams", (1,)),
    ],
)
def test_values_out_of_their_range(field: str, value: Any) -> None:
    given: Any = {"beam_width": 2, "max_tokens": 2, field: value}
    with pytest.raises(ValueError, match=field):
        BeamSearchParams(**given)
