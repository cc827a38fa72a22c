# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rtp_llm.request.sampling_params import (
    SamplingParams,
    StructuredOutputsParams,
    check_token_fields,
    truncate_prompt,
)


def test_defaults_are_those_of_openai() -> None:
    params = SamplingParams()
    assert (params.temperature, params.top_p, params.n, params.max_tokens) == (
        1.0,
        1.0,
        1,
        msgspec.UNSET,
    )
    assert not params.greedy
    assert SamplingParams(temperature=0).greedy
    assert SamplingParams(top_k=1).greedy


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("n", 0, "n=0 must be between 1 and"),
        ("n", True, "n=True must be an integer"),
        ("max_tokens", 0, "max_tokens=0"),
        ("min_tokens", -1, "min_tokens=-1"),
        ("temperature", -0.1, "temperature=-0.1 must be between 0"),
        ("temperature", float("nan"), "temperature=nan must be a finite number"),
        ("temperature", "1", "temperature='1' must be a finite number"),
        ("top_p", 0.0, "top_p=0.0"),
        ("top_p", 1.5, "top_p=1.5"),
        ("min_p", 2.0, "min_p=2.0"),
        ("typical_p", 0.0, "typical_p=0.0"),
        ("typical_p", 1.5, "typical_p=1.5"),
        ("repetition_penalty", 0.0, "repetition_penalty=0.0"),
        ("presence_penalty", 3.0, "presence_penalty=3.0 must be between -2.0 and 2.0"),
        ("frequency_penalty", -3.0, "frequency_penalty=-3.0"),
        ("no_repeat_ngram_size", -1, "no_repeat_ngram_size=-1"),
        ("logit_bias", {5: float("inf")}, r"logit_bias\[5\]=inf"),
        ("logit_bias", {-5: 1.0}, "logit_bias key=-5"),
        ("seed", 2**63, "seed="),
        ("stop", ("",), "stop="),
        ("stop", "", "stop=.* must be a text or a list of texts"),
        ("stop", [1], r"stop=\[1\] must be a text or a list of texts"),
        ("stop", 7, "stop=7 must be a text"),
        ("stop_token_ids", (-1,), "stop_token_ids=-1"),
        ("stop_token_ids", [True], "stop_token_ids=True must be an integer"),
        ("stop_token_ids", 1, "stop_token_ids=1 must be a list"),
        ("logit_bias", {True: 1.0}, "logit_bias key=True must be an integer"),
        ("allowed_token_ids", [], "allows no token"),
        ("allowed_token_ids", [False], "allowed_token_ids=False must be an integer"),
        ("logprob_token_ids", [1] * 129, "129 entries, at most 128"),
        ("bad_words", [""], "bad_words="),
        ("bad_words", ["x"] * 257, "at most 256 are taken"),
        ("bad_words_token_ids", [[]], "an entry of 0 tokens"),
        ("bad_words_token_ids", [[1] * 33], "an entry of 33 tokens"),
        ("truncate_prompt_tokens", 0, "truncate_prompt_tokens=0"),
        ("truncate_prompt_tokens", -2, "truncate_prompt_tokens=-2"),
        ("skip_special_tokens", 1, "skip_special_tokens=1 must be true or false"),
        ("logprobs", 2**24 + 1, "logprobs=16777217 must be between 0 and 16777216"),
        ("prompt_logprobs", -2, "prompt_logprobs=-2"),
        ("priority", 101, "priority=101 must be between -100 and 100"),
    ],
)
def test_a_bad_value_is_named(field: str, value: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SamplingParams(**{field: value})  # type: ignore[arg-type]


def test_min_tokens_must_not_exceed_max_tokens() -> None:
    with pytest.raises(ValueError, match="min_tokens=5 must not exceed max_tokens=4"):
        SamplingParams(min_tokens=5, max_tokens=4)


def test_it_travels_through_msgpack() -> None:
    params = SamplingParams(
        logit_bias={3: -1.5},
        stop=("a", "b"),
        seed=-7,
        logprobs=2,
        allowed_token_ids=[1],
        bad_words_token_ids=[[1, 2]],
    )
    data = msgspec.msgpack.encode(params)
    assert msgspec.msgpack.decode(data, type=SamplingParams) == params


def test_lists_and_single_values_are_taken_as_in_vllm() -> None:
    params = SamplingParams(stop="x", stop_token_ids=[1], allowed_token_ids=[2], bad_words="y")
    assert (params.stop, params.stop_token_ids) == (("x",), (1,))
    assert (params.allowed_token_ids, params.bad_words) == ((2,), ("y",))
    assert params == SamplingParams(
        stop=["x"], stop_token_ids=(1,), allowed_token_ids=(2,), bad_words=["y"]
    )
    nothing = SamplingParams(stop=None, stop_token_ids=None, logit_bias=None, bad_words=None)  # type: ignore[arg-type]
    assert nothing == SamplingParams()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("max_token", r"no argument is called max_token; did you mean max_tokens\?"),
        ("stop_tokens_ids", r"did you mean stop_token_ids\?"),
        ("guided_decoding", "guided_decoding is not supported: set structured_outputs="),
        ("best_of", "best_of is not supported: .* set n"),
        ("max_new_tokens", "called max_tokens"),
        ("xyz", "no argument is called xyz; there are n, max_tokens"),
    ],
)
def test_an_unknown_argument_names_the_nearest_or_the_reason(name: str, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        SamplingParams(**{name: 1})
    with pytest.raises(TypeError, match=r"positional|expected 0"):
        SamplingParams(5)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("keep", "max_tokens", "kept"), [(None, 4, 10), (3, 4, 3), (12, 4, 10), (-1, 4, 8), (-1, 20, 1)]
)
def test_a_truncated_prompt_keeps_its_end(keep: int, max_tokens: int, kept: int) -> None:
    ids = list(range(10))
    assert truncate_prompt(ids, keep, 12, max_tokens) == ids[10 - kept :]


def test_a_prompt_cannot_be_truncated_to_more_than_the_context() -> None:
    with pytest.raises(ValueError, match=r"truncate_prompt_tokens=9 must not exceed .* 8"):
        truncate_prompt([1], 9, 8, 1)


def test_every_field_that_names_tokens_is_held_against_the_vocabulary() -> None:
    for fields in (
        {"stop_token_ids": [8]},
        {"logit_bias": {8: 1.0}},
        {"logprob_token_ids": [8]},
        {"allowed_token_ids": [8]},
        {"bad_words_token_ids": [[1, 8]]},
    ):
        (name,) = fields
        check_token_fields(SamplingParams(**fields), 9)
        with pytest.raises(ValueError, match=f"{name}: token id 8 is outside the vocabulary of 8"):
            check_token_fields(SamplingParams(**fields), 8)


def test_the_page_of_the_python_api_has_every_field() -> None:
    page = Path("docs/python_api.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| [^|]+ \|$", page, re.MULTILINE)
    documented = dict(rows)
    defaults = SamplingParams()
    for name in SamplingParams.__struct_fields__:
        assert name in documented, name
        if name != "max_tokens":
            assert documented[name].strip() == str(getattr(defaults, name)), name


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "none is given"),
        ({"json_object": False}, "none is given"),
        ({"json": {}, "regex": "a"}, "json and regex is given"),
    ],
)
def test_structured_outputs_are_of_one_kind(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        StructuredOutputsParams(**given)
    assert StructuredOutputsParams(json={}, disable_any_whitespace=True).json == {}


def test_structured_outputs_may_be_a_dict() -> None:
    schema = {"type": "integer"}
    given: Any = {"json": schema, "disable_any_whitespace": True}
    wanted = StructuredOutputsParams(json=schema, disable_any_whitespace=True)
    assert SamplingParams(structured_outputs=given).structured_outputs == wanted


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"jason": "{}"}, "structured_outputs has no 'jason'; it has json, regex"),
        ({}, "structured_outputs needs one of json, .*; none is given"),
        ({"json": "{}", "regex": "a"}, "json and regex is given"),
        ({"regex": 5}, "structured_outputs: regex=5 must be a string"),
        ({"choice": "yes"}, "structured_outputs: choice='yes' must be a list of strings"),
        ("a+", r"structured_outputs='a\+' must be StructuredOutputsParams\(...\) or a dict"),
    ],
)
def test_structured_outputs_say_what_is_wrong(given: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SamplingParams(structured_outputs=given)
