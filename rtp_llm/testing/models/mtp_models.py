# SPDX-License-Identifier: Apache-2.0
"""Small random models with a layer of multi-token prediction, and that layer in plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rtp_llm.testing.light_transformers import light_transformers
from rtp_llm.testing.models.transformers_models import randomize, save_model

with light_transformers():
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3DecoderLayer
    from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeDecoderLayer
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer
    from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeDecoderLayer
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextDecoderLayer

_LAYERS: dict[str, Any] = {
    "deepseek_v3": DeepseekV3DecoderLayer,
    "glm4_moe": Glm4MoeDecoderLayer,
    "qwen3_5": Qwen3_5DecoderLayer,
    "qwen3_5_moe": Qwen3_5MoeDecoderLayer,
    "qwen3_next": Qwen3NextDecoderLayer,
}
_FULL = "full_attention"
# DeepSeek's names of what Qwen calls mtp.*; its copies of the model's own tensors are there, too.
_DEEPSEEK = {
    "pre_fc_norm_embedding.": "enorm.",
    "pre_fc_norm_hidden.": "hnorm.",
    "fc.": "eh_proj.",
    "norm.": "shared_head.norm.",
    "layers.0.": "",
}


# Kinds whose layer follows the others in checkpoints, under the names above.
_AFTER_THE_LAST = ("deepseek_v3", "glm4_moe")


class MtpOracle(nn.Module):
    """The MTP layer of a transformers ``model``, recomputed in float32 for all tokens each time."""

    def __init__(self, kind: str, model: Any) -> None:
        super().__init__()
        config, norm = model.config, type(model.model.norm)
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.pre_fc_norm_embedding = norm(hidden, eps)
        self.pre_fc_norm_hidden = norm(hidden, eps)
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        deepseek = kind in _AFTER_THE_LAST  # all of its layers are alike, but for the first ones
        layer = config.num_hidden_layers - 1 if deepseek else config.layer_types.index(_FULL)
        self.layers = nn.ModuleList([_LAYERS[kind](config, layer)])
        self.norm = norm(hidden, eps)
        # Not a part of it.
        self._target = [model]

    @torch.inference_mode()
    def hidden_states(self, tokens: Sequence[int]) -> Tensor:
        """The model's own hidden states [len(tokens), hidden], after its final norm."""
        (model,) = self._target
        states: Tensor = model.model(input_ids=torch.tensor([tokens])).last_hidden_state[0]
        return states

    @torch.inference_mode()
    def forward(self, tokens: Sequence[int], hidden: Tensor) -> Tensor:
        """New states [T, hidden] of ``tokens``, each following the token of its ``hidden`` row."""
        (model,) = self._target
        embedded = model.model.embed_tokens(torch.tensor([tokens]))
        both = self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden[None])
        x = self.fc(torch.cat(both, -1))
        count = len(tokens)
        positions = torch.arange(count)[None]
        angles = model.model.rotary_emb(x, positions)
        mask = torch.full((count, count), -torch.inf).triu(1)[None, None]
        (layer,) = self.layers
        x = layer(x, position_embeddings=angles, attention_mask=mask, position_ids=positions)
        states: Tensor = self.norm(x)[0]
        return states

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 [T, vocabulary]."""
        (model,) = self._target
        logits: Tensor = model.lm_head(hidden)
        return logits.float()

    def drafts(self, tokens: Sequence[int], count: int) -> tuple[list[int], float]:
        """The tokens drafted after ``tokens`` (two at least), whose last one was just sampled.

        Also returns the smallest margin between the best token and the runner-up.
        """
        drafted, gap = [int(token) for token in tokens[1:]], torch.inf
        rows = self.hidden_states(tokens[:-1])
        for _ in range(count):
            last = self(drafted, rows)[-1:]
            best = self.logits(last)[0].topk(2)
            gap = min(gap, float(best.values[0] - best.values[1]))
            drafted.append(int(best.indices[0]))
            rows = torch.cat([rows, last])
        return drafted[len(tokens) - 1 :], gap


def save_mtp_model(folder: Path, kind: str, **settings: Any) -> tuple[Any, MtpOracle]:
    """Like save_model, plus a random multi-token prediction layer after the model's own layers."""
    deepseek = kind in _AFTER_THE_LAST
    counted = "num_nextn_predict_layers" if deepseek else "mtp_num_hidden_layers"
    model = save_model(folder, kind, **{counted: 1}, **settings)
    oracle = MtpOracle(kind, model)
    with torch.no_grad():
        for name, parameter in oracle.named_parameters():
            randomize(name, parameter)
        for name, buffer in oracle.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.uniform_(-0.1, 0.1)
    file = folder / "model.safetensors"
    own = {name: value.clone() for name, value in oracle.state_dict().items()}
    if deepseek:
        prefix = f"model.layers.{model.config.num_hidden_layers}."
        own = {prefix + _deepseek_name(name): value for name, value in own.items()}
        own[f"{prefix}embed_tokens.weight"] = model.model.embed_tokens.weight.detach().clone()
        own[f"{prefix}shared_head.head.weight"] = model.lm_head.weight.detach().clone()
    else:
        own = {f"mtp.{name}": value for name, value in own.items()}
    save_file(load_file(file) | own, file, {"format": "pt"})
    return model, oracle.eval()


def _deepseek_name(name: str) -> str:
    begin = next(begin for begin in _DEEPSEEK if name.startswith(begin))
    return _DEEPSEEK[begin] + name.removeprefix(begin)
