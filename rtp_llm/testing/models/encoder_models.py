# SPDX-License-Identifier: Apache-2.0
"""Small random encoders made with transformers, saved as a user would get them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm.testing.light_transformers import light_transformers

with light_transformers():
    import transformers

VOCABULARY = 199
_BERT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 80,
    "max_position_embeddings": 320,
}
_ROBERTA = {**_BERT, "max_position_embeddings": 322, "pad_token_id": 1}
# Name -> classes of transformers, keys of the config.
_KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertConfig", "BertModel", _BERT),
    "distilbert": (
        "DistilBertConfig",
        "DistilBertModel",
        {
            "vocab_size": VOCABULARY,
            "dim": 48,
            "n_layers": 3,
            "n_heads": 3,
            "hidden_dim": 80,
            "max_position_embeddings": 320,
        },
    ),
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3TextModel",
        {
            **_BERT,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "query_pre_attn_scalar": 20,
            "sliding_window": 24,
            "sliding_window_pattern": 2,
            "attention_bias": True,
            "use_bidirectional_attention": True,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 2e5, "factor": 4.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "gte": ("GteConfig", "GteModel", {**_BERT, "type_vocab_size": 2}),
    "modernbert": (
        "ModernBertConfig",
        "ModernBertModel",
        {
            **_BERT,
            "num_hidden_layers": 4,
            "local_attention": 24,
            "norm_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "bos_token_id": 3,
            "eos_token_id": 4,
            "pad_token_id": 0,
            "cls_token_id": 3,
            "sep_token_id": 4,
        },
    ),
    "mpnet": ("MPNetConfig", "MPNetModel", _ROBERTA),
    "qwen2": (
        "Qwen2Config",
        "Qwen2Model",
        {**_BERT, "num_key_value_heads": 1, "is_causal": False},
    ),
    "roberta": ("RobertaConfig", "RobertaModel", {**_ROBERTA, "type_vocab_size": 1}),
    "xlm_roberta": ("XLMRobertaConfig", "XLMRobertaModel", {**_ROBERTA, "type_vocab_size": 1}),
}
ENCODERS = tuple(_KINDS)


def save_encoder(
    folder: Path, kind: str, *, of: str | None = None, seed: int = 0, **settings: Any
) -> Any:
    """Write a random encoder to `folder` and return it (a PreTrainedModel, float32).

    The test is skipped where transformers is older than the encoder.
    `of`: another class of transformers with the same config. `settings` are keys of the config.
    Weights, norms and biases are all drawn at random.
    """
    config, model_name, values = _KINDS[kind]
    if not hasattr(transformers, config):
        pytest.skip(f"transformers {transformers.__version__} has no {config}")
    torch.manual_seed(seed)
    own = getattr(transformers, config)(**{**values, **settings}, attn_implementation="eager")
    model = getattr(transformers, of or model_name)(own)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _randomize(name, parameter)
    with light_transformers():
        model.save_pretrained(folder)
    return model.eval()


def _randomize(name: str, parameter: torch.nn.Parameter) -> None:
    if "norm" in name.lower() and name.endswith("weight"):
        middle = round(float(parameter.mean()))  # 0 of those which are added to one
        parameter.uniform_(middle - 0.5, middle + 0.5)
    elif name.endswith("bias"):
        parameter.normal_(std=0.3)
    elif "embedding" in name or "attention_bias" in name:
        parameter.normal_(std=0.7)
    else:
        parameter.normal_(std=1.5 * parameter.shape[-1] ** -0.5)


@torch.inference_mode()
def expected_states(model: Any, prompt: Sequence[int]) -> torch.Tensor:
    """float32 hidden states [len(prompt), hidden] of one prompt."""
    states: torch.Tensor = model(input_ids=torch.tensor([prompt])).last_hidden_state[0]
    return states
