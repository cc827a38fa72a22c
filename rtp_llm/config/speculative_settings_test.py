# SPDX-License-Identifier: Apache-2.0
"""Speculation by flags and by vLLM's JSON object."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rtp_llm.config.options import SettingsError
from rtp_llm.config.settings import Settings


def test_nothing_is_drafted_by_default() -> None:
    assert Settings(model="m").speculative == "none"


def test_one_object_says_all() -> None:
    config = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 6}
    settings = Settings(model="m", speculative_config=json.dumps(config))
    assert (settings.speculative, settings.num_speculative_tokens) == ("ngram", 5)
    assert (settings.prompt_lookup_min, settings.prompt_lookup_max) == (2, 6)


def test_a_table_of_lengths() -> None:
    table = [[1, 8, 3], [9, 32, 1], [33, 64, 0]]
    expected = ((1, 8, 3), (9, 32, 1), (33, 64, 0))
    name = "num_speculative_tokens_per_batch_size"
    assert Settings(model="m", **{name: json.dumps(table)}).draft_table == expected
    config = json.dumps({"method": "suffix", name: table})
    assert Settings(model="m", speculative_config=config).draft_table == expected
    assert Settings(model="m").draft_table == ()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("3", "is not a list of"),
        ("[[1, 2]]", "is not a list of"),
        ("[[1, 2, 3", "is not a list of"),
        ('[[1, 2, "3"]]', "not whole numbers"),
        ("[[2, 8, 3]]", r"\[2, 8, 3\] must begin with 1"),
        ("[[1, 8, 3], [10, 12, 2]]", r"\[10, 12, 2\] must begin with 9"),
        ("[[1, 0, 3]]", "not end before that"),
        ("[[1, 8, 4]]", "4 draft tokens are not from 0 to num_speculative_tokens, 3"),
        ("[[1, 8, -1]]", "-1 draft tokens are not from 0"),
    ],
)
def test_tables_that_make_no_sense(table: str, message: str) -> None:
    with pytest.raises(SettingsError, match=f"^num_speculative_tokens_per_batch_size: .*{message}"):
        Settings(model="m", num_speculative_tokens_per_batch_size=table)


@pytest.mark.parametrize("method", ["mtp", "qwen3_next_mtp", "qwen3_5_mtp"])
def test_other_names_of_a_method(method: str) -> None:
    settings = Settings(model="m", speculative_config=json.dumps({"method": method}))
    assert settings.speculative == "mtp"
    assert settings.draft_head == {"mtp": True, "eagle3": "", "draft_model": ""}


def test_an_eagle3_head_needs_a_folder() -> None:
    config = {"method": "eagle3", "model": "/models/head", "num_speculative_tokens": 2}
    settings = Settings(model="m", speculative_config=json.dumps(config))
    assert settings.draft_head == {"mtp": False, "eagle3": "/models/head", "draft_model": ""}
    with pytest.raises(SettingsError, match=r"^speculative_model: .* folder of a head"):
        Settings(model="m", speculative="eagle3")


@pytest.mark.parametrize("method", ["draft-model", "draft_model"])
def test_a_draft_model_needs_a_folder(method: str) -> None:
    config = {"method": method, "model": "/models/small", "num_speculative_tokens": 5}
    settings = Settings(model="m", speculative_config=json.dumps(config))
    assert settings.speculative == "draft-model" and settings.has_draft_head
    assert settings.draft_head == {"mtp": False, "eagle3": "", "draft_model": "/models/small"}
    with pytest.raises(SettingsError, match=r"^speculative_model: with draft-model .* of a model"):
        Settings(model="m", speculative="draft-model")


@pytest.mark.parametrize("method", ["mtp", "eagle3", "draft_model"])
def test_sampled_drafts(method: str) -> None:
    config = {"method": method, "draft_sample_method": "probabilistic"}
    if method != "mtp":
        config["model"] = "/models/small"
    assert Settings(model="m", speculative_config=json.dumps(config)).samples_drafts
    assert not Settings(model="m", speculative="mtp").samples_drafts
    with pytest.raises(SettingsError, match="'gumbel' is not one of greedy, probabilistic"):
        Settings(model="m", speculative_config='{"draft_sample_method": "gumbel"}')


def test_object_and_flags_may_agree() -> None:
    config = '{"method": "ngram", "num_speculative_tokens": 3}'
    assert Settings(model="m", speculative="ngram", speculative_config=config).speculative


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"speculative_config": "{"}, "is not JSON"),
        ({"speculative_config": "[1]"}, "is not a JSON object"),
        ({"speculative_config": '{"k": 3}'}, "'k' is not known; there are method, model, "),
        ({"speculative_config": '{"speculative": "ngram"}'}, "'speculative' is not known"),
        ({"speculative_config": '{"method": "mlp"}'}, "method: 'mlp' is not one of none, ngram"),
        ({"speculative_config": '{"num_speculative_tokens": 0}'}, "0 is below the minimum 1"),
        ({"speculative_config": '{"num_speculative_tokens": true}'}, "not a whole number"),
        (
            {"speculative_config": '{"num_speculative_tokens": 4}', "num_speculative_tokens": 5},
            "num_speculative_tokens: 5 here and 4 in speculative_config; say it once",
        ),
        ({"prompt_lookup_min": 5}, "prompt_lookup_min: 5 is above prompt_lookup_max, 4"),
    ],
)
def test_what_does_not_fit_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Settings(model="m", **fields)
