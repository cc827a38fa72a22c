# SPDX-License-Identifier: Apache-2.0
"""Tests of generation_config.json: what is honoured, what is named, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import GenerationConfig

from rtp_llm.model_folder import ModelFilesError
from rtp_llm.text.generation_defaults import (
    HONOURED,
    UNSUPPORTED,
    WITHOUT_EFFECT,
    GenerationDefaults,
    not_honoured,
)


def test_every_key_of_transformers_has_its_place() -> None:
    known = {key for key in vars(GenerationConfig()) if not key.startswith("_")}
    assert known == HONOURED | set(UNSUPPORTED) | WITHOUT_EFFECT
    assert not HONOURED & set(UNSUPPORTED)
    assert not WITHOUT_EFFECT & (HONOURED | set(UNSUPPORTED))


def test_what_changes_answers_and_is_not_supported_is_named() -> None:
    values = {
        "num_beams": 4,
        "eta_cutoff": 0.5,
        "suppress_tokens": [1, 2],
        "temprature": 0.1,
        "top_p": 0.9,
        "cache_implementation": "static",
        "_from_model_config": True,
    }
    assert not_honoured(values) == ("num_beams", "eta_cutoff", "suppress_tokens", "temprature")
    assert not_honoured({"max_length": 4096}) == ("max_length",)
    assert not_honoured({"max_length": 4096, "max_new_tokens": 50}) == ()


def test_values_that_ask_for_nothing_are_not_named() -> None:
    assert not_honoured(dict(UNSUPPORTED)) == ()
    assert not_honoured(dict.fromkeys(UNSUPPORTED)) == ()
    assert (
        not_honoured({"num_beams": 1, "suppress_tokens": [], "remove_invalid_values": False}) == ()
    )
    assert not_honoured({"eta_cutoff": 0.0, "penalty_alpha": 0.0, "min_length": 0}) == ()


def test_the_shortest_answer_is_honoured() -> None:
    assert GenerationDefaults.read({"min_new_tokens": 3}).params().min_tokens == 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": "hot"}, "temperature must be a finite number; not 'hot'"),
        ({"temperature": float("nan")}, "temperature must be a finite number; not nan"),
        ({"top_p": 10**400}, "top_p must be a finite number"),
        ({"top_p": True}, "top_p must be a finite number; not True"),
        ({"top_p": 1.7}, r"top_p=1\.7 must be between 0\.0 and 1\.0"),
        ({"top_k": 2.5}, r"top_k must be a whole number; not 2\.5"),
        ({"max_new_tokens": 0}, "max_new_tokens=0 must be between 1"),
        ({"max_new_tokens": 2, "min_new_tokens": 3}, "min_new_tokens=3 must not exceed max_new_to"),
        ({"do_sample": "no"}, "do_sample must be true or false; not 'no'"),
        ({"repetition_penalty": 0}, r"repetition_penalty=0\.0 must be between"),
    ],
)
def test_what_no_request_could_have_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFilesError, match=rf"generation_config\.json: {message}") as caught:
        GenerationDefaults.read(values)
    assert str(caught.value).endswith("; mend it, or set --use-generation-config off")
