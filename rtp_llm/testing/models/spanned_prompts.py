# SPDX-License-Identifier: Apache-2.0
"""Prompts of text and images for the model of spanned_model.py, and its answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm.request.mm_features import MultiModalFeature, PlaceholderRange
from rtp_llm.testing.light_transformers import light_transformers
from rtp_llm.testing.models.spanned_model import HEAD_DIM, NAME, SECTIONS, WIDTH, register
from rtp_llm.testing.models.transformers_models import random_prompt, save_model

PLACEHOLDER = 7


def save_spanned_model(folder: Path, architecture: str = NAME) -> Oracle:
    """Write a random model to ``folder``; returns what transformers makes of it, without
    adapters."""
    sizes = {"hidden_size": WIDTH, "num_attention_heads": 4, "head_dim": HEAD_DIM}
    model = save_model(folder, "qwen2", seed=3, **sizes)
    file = folder / "config.json"
    values = json.loads(file.read_text())
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": SECTIONS}
    values |= {"architectures": [architecture], "rope_parameters": rope}
    values.pop("rope_theta", None)
    file.write_text(json.dumps(values))
    register()
    return Oracle.of(model, rope)


@dataclass(frozen=True)
class Image:
    """Embeddings of ``rows`` x ``columns`` patches, decided by the ``seed``."""

    rows: int
    columns: int
    seed: int

    @property
    def length(self) -> int:
        return self.rows * self.columns

    @property
    def embeddings(self) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randn(self.length, WIDTH, generator=generator)

    def feature(self, offset: int) -> MultiModalFeature:
        """As a request brings it."""
        data = self.embeddings.numpy().tobytes()
        return MultiModalFeature(
            mm_position=PlaceholderRange(offset=offset, length=self.length),
            modality="image",
            identifier=hashlib.sha256(data).hexdigest(),
            data=data,
        )


@dataclass(frozen=True)
class SpannedPrompt:
    """Text tokens and images, in the order of ``parts``."""

    parts: Sequence[Sequence[int] | Image]

    @classmethod
    def random(cls, *lengths: int | Image, seed: int = 0) -> SpannedPrompt:
        """Text of these lengths, and images."""
        return cls(
            [
                each if isinstance(each, Image) else random_prompt(each, seed=seed + place)
                for place, each in enumerate(lengths)
            ]
        )

    @property
    def ids(self) -> list[int]:
        ids: list[int] = []
        for part in self.parts:
            ids += [PLACEHOLDER] * part.length if isinstance(part, Image) else part
        return ids

    @property
    def offsets(self) -> list[int]:
        """Where each part begins."""
        lengths = [part.length if isinstance(part, Image) else len(part) for part in self.parts]
        return [0, *np.cumsum(lengths[:-1]).tolist()]

    @property
    def positions(self) -> NDArray[np.int32]:
        """int32 [3, P]; as Qwen2-VL counts: text goes on after the longest side of an image."""
        found, start = [], 0
        for part in self.parts:
            if isinstance(part, Image):
                places = np.indices((1, part.rows, part.columns)).reshape(3, -1)
                length = max(part.rows, part.columns)
            else:
                places, length = np.tile(np.arange(len(part)), (3, 1)), len(part)
            found.append(places + start)
            start += length
        return np.concatenate(found, axis=1).astype(np.int32)

    @property
    def delta(self) -> int:
        return int(self.positions.max()) + 1 - len(self.ids)

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Fields of AddRequest."""
        pairs = zip(self.parts, self.offsets, strict=True)
        return {
            "mm_features": [part.feature(at) for part, at in pairs if isinstance(part, Image)],
            "mrope_positions": self.positions.tobytes(),
            "mrope_position_delta": self.delta,
        }


@dataclass(frozen=True)
class Oracle:
    """Qwen2-VL's text model of transformers, and the weight of its logits."""

    text: Any
    head: Tensor

    @classmethod
    def of(cls, model: Any, rope: dict[str, Any]) -> Oracle:
        """Of the weights of a Qwen2ForCausalLM."""
        with light_transformers():
            from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLTextConfig
            from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLTextModel
        values = model.config.to_dict()
        values |= {"rope_parameters": rope, "attn_implementation": "eager"}
        for key in ("model_type", "architectures", "rope_theta", "transformers_version"):
            values.pop(key, None)
        text: Any = Qwen2VLTextModel(Qwen2VLTextConfig(**values))
        text.float().eval()
        text.load_state_dict(model.model.state_dict())
        return cls(text, model.lm_head.weight)

    @torch.no_grad()
    def logits(self, prompt: SpannedPrompt, output: Sequence[int]) -> Tensor:
        """Float32 [len(output) + 1, vocabulary]: of the token after the prompt, and after each of
        ``output``."""
        ids = torch.tensor([[*prompt.ids, *output]])
        embeddings = self.text.embed_tokens(ids)
        for part, offset in zip(prompt.parts, prompt.offsets, strict=True):
            if isinstance(part, Image):
                embeddings[0, offset : offset + part.length] = part.embeddings
        following = np.arange(len(prompt.ids), ids.shape[1]) + prompt.delta
        positions = np.concatenate([prompt.positions, np.tile(following, (3, 1))], axis=1)
        hidden: Tensor = self.text(
            inputs_embeds=embeddings,
            position_ids=torch.from_numpy(positions).long()[:, None],
            use_cache=False,
        ).last_hidden_state[0]
        return hidden[len(prompt.ids) - 1 :] @ self.head.T

    def answer(self, prompt: SpannedPrompt, count: int) -> list[int]:
        """The most likely tokens, one after the other."""
        output: list[int] = []
        while len(output) < count:
            output.append(int(self.logits(prompt, output)[-1].argmax()))
        return output
