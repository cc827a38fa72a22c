from __future__ import annotations

import msgspec
import pytest

from rtp_llm.sampling_params import SamplingParams


def test_defaults_are_those_of_openai() -> None:
    params = SamplingParams()
    assert (params.temperature, params.top_p, params.n, params.max_tokens) == (1.0, 1.0, 1, None)
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
        ("repetition_penalty", 0.0, "repetition_penalty=0.0"),
        ("presence_penalty", 3.0, "presence_penalty=3.0 must be between -2.0 and 2.0"),
        ("frequency_penalty", -3.0, "frequency_penalty=-3.0"),
        ("no_repeat_ngram_size", -1, "no_repeat_ngram_size=-1"),
        ("logit_bias", {5: float("inf")}, r"logit_bias\[5\]=inf"),
        ("logit_bias", {-5: 1.0}, "logit_bias key=-5"),
        ("seed", 2**63, "seed="),
        ("stop", ("",), "stop="),
        ("stop", "end", "stop='end' must be a tuple"),
        ("stop_token_ids", (-1,), "stop_token_ids=-1"),
        ("stop_token_ids", [1], "must be a tuple"),
        ("logprobs", 101, "logprobs=101 must be between 0 and 100"),
        ("prompt_logprobs", -1, "prompt_logprobs=-1"),
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
    params = SamplingParams(logit_bias={3: -1.5}, stop=("a", "b"), seed=-7, logprobs=2)
    data = msgspec.msgpack.encode(params)
    assert msgspec.msgpack.decode(data, type=SamplingParams) == params
