# SPDX-License-Identifier: Apache-2.0
"""The files of sentence-transformers say how to pool, what follows, and what comes before texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.model_folder import ModelFilesError
from rtp_llm.request.params import PoolingParams
from rtp_llm.text.pooling_config import DenseConfig, read_pooling, read_prompt_texts

KINDS = ("Transformer", "Pooling", "Normalize")
MEAN = {"pooling_mode_mean_tokens": True}


def write(folder: Path, kinds: tuple[str, ...] = KINDS, **files: Any) -> Path:
    """`files`: contents of a module's config.json by the module's type."""
    modules = []
    for number, kind in enumerate(kinds):
        path = f"{number}_{kind}" if number else ""
        modules.append(
            {"idx": number, "path": path, "type": f"sentence_transformers.models.{kind}"}
        )
        if number and kind in files:
            (folder / path).mkdir(exist_ok=True)
            (folder / path / "config.json").write_text(json.dumps(files[kind]))
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


@pytest.mark.parametrize(
    ("pooling", "kind"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_mean_tokens": True, "word_embedding_dimension": 8}, "mean"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode_weightedmean_tokens": True, "include_prompt": True}, "weightedmean"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode": "weightedmean"}, "weightedmean"),
    ],
)
def test_folders_say_how_to_pool(tmp_path: Path, pooling: dict[str, Any], kind: str) -> None:
    found = read_pooling(write(tmp_path, KINDS[:2], Pooling=pooling)).params
    assert (found.pooling_type, found.normalize) == (kind, False)
    assert read_pooling(write(tmp_path, Pooling=pooling)).params.normalize
    default = PoolingParams(pooling_type="last", normalize=True)
    assert read_pooling(tmp_path / "none").params == default


def test_dense_layers(tmp_path: Path) -> None:
    kinds = ("Transformer", "Pooling", "Dense", "Dense", "Normalize")
    write(tmp_path, kinds, Pooling=MEAN, Dense={"in_features": 8, "out_features": 9})
    identity = {"in_features": 9, "out_features": 4, "bias": False}
    identity["activation_function"] = "torch.nn.modules.linear.Identity"  # type: ignore[assignment]
    (tmp_path / "3_Dense/config.json").write_text(json.dumps(identity))
    assert read_pooling(tmp_path).dense == (
        DenseConfig(tmp_path / "2_Dense", 8, 9, True, "tanh"),
        DenseConfig(tmp_path / "3_Dense", 9, 4, False, "identity"),
    )


@pytest.mark.parametrize(
    ("keys", "sizes"),
    [
        ({}, None),
        ({"is_matryoshka": False}, None),
        ({"is_matryoshka": True}, ()),
        ({"is_matryoshka": True, "matryoshka_dimensions": [64, 128]}, (64, 128)),
        ({"matryoshka_dimensions": [64]}, (64,)),
    ],
)
def test_sizes_of_cut_embeddings(tmp_path: Path, keys: dict[str, Any], sizes: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps(keys))
    assert read_pooling(tmp_path).matryoshka == sizes


@pytest.mark.parametrize(
    ("kinds", "files", "reason"),
    [
        (
            KINDS,
            {"Pooling": {"pooling_mode_mean_sqrt_len_tokens": True}},
            "mean_sqrt_len_tokens; c",
        ),
        (KINDS, {"Pooling": {**MEAN, "pooling_mode_cls_token": True}}, "cls_token; cls, mean"),
        (KINDS, {"Pooling": {}}, "pooling by nothing"),
        (KINDS, {"Pooling": {"pooling_mode": "first"}}, "pooling_mode 'first'"),
        (KINDS, {"Pooling": {**MEAN, "include_prompt": False}}, "include_prompt false"),
        (KINDS[:1], {}, "names no Pooling module"),
        ((*KINDS, "Dense"), {"Pooling": MEAN}, "Normalize, Dense; expected Transformer"),
        ((*KINDS[:2], "CNN"), {"Pooling": MEAN}, "type CNN are not supported"),
        (
            (*KINDS[:2], "Dense"),
            {"Pooling": MEAN, "Dense": {"in_features": 8, "out_features": 0}},
            "out_features must be a positive integer; not 0",
        ),
        (
            (*KINDS[:2], "Dense"),
            {
                "Pooling": MEAN,
                "Dense": {"in_features": 8, "out_features": 9, "activation_function": "x.GELU"},
            },
            "'x.GELU'; Identity and Tanh are supported",
        ),
    ],
)
def test_what_is_not_supported_is_named(
    tmp_path: Path, kinds: tuple[str, ...], files: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ModelFilesError, match=reason):
        read_pooling(write(tmp_path, kinds, **files))


@pytest.mark.parametrize(
    ("modules", "reason"),
    [([{"type": "x.Pooling", "path": "../up"}], "no path in the folder"), ({}, "hold a list")],
)
def test_broken_modules(tmp_path: Path, modules: Any, reason: str) -> None:
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelFilesError, match=reason):
        read_pooling(tmp_path)


def test_prompts_by_name(tmp_path: Path) -> None:
    assert read_prompt_texts(tmp_path).before() == ""
    file = tmp_path / "config_sentence_transformers.json"
    file.write_text(json.dumps({"prompts": {"query": "query: "}, "default_prompt_name": None}))
    found = read_prompt_texts(tmp_path)
    assert (found.before(), found.before("query")) == ("", "query: ")
    with pytest.raises(ValueError, match=r"'passage'.*these names: query"):
        found.before("passage")
    for broken in ({"prompts": {"query": 3}}, {"prompts": {}, "default_prompt_name": "query"}):
        file.write_text(json.dumps(broken))
        with pytest.raises(ModelFilesError, match="prompts"):
            read_prompt_texts(tmp_path)
