# SPDX-License-Identifier: Apache-2.0
"""What every language model offers to the worker, and its class to the loader."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.attention import (
    BackendConfig,
    BackendOptions,
    CacheDtypes,
    CacheGroups,
    ForwardBatch,
    check_backend,
    explain,
    together,
)
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.device import Capabilities
from rtp_llm.distributed.tensor_parallel import SINGLE, TensorParallel
from rtp_llm.layers import Layer, LayerOptions, MixerShape, torch_dtype
from rtp_llm.layers.moe import ExpertHooks
from rtp_llm.models.config import Features, ModelConfig
from rtp_llm.models.draft_head import DraftModule
from rtp_llm.models.raw_config import RawConfig

# An EAGLE-3 head's maps from and to its vocabulary; the first is read separately from the weights.
_MAPS = ("eagle3.d2t", "eagle3.t2d")
_KV_DTYPES = {"fp8_e4m3": torch.float8_e4m3fn}


def model_cache_dtypes(settings: ModelSettings) -> CacheDtypes:
    """What the caches hold for settings whose dtype is not "auto"."""
    dtype = torch_dtype(settings)
    kv_dtype = _KV_DTYPES.get(settings.kv_cache_dtype) or dtype
    return CacheDtypes.of(kv_dtype, dtype, settings)


@dataclass(frozen=True)
class ModelOptions:
    """What is chosen when a model is built, beyond its config.

    `settings` are resolved: dtype, max_seq_len and seq_size_per_block have values. `device` is
    torch's, `capabilities` are what its kernels can do. `fp8_weights` are the names of what the
    checkpoint stores in FP8 blocks, `fp8_products`: the device multiplies these. `experts`: where
    experts are. `planned`: weights have shapes and no memory. `tensor_parallel`: the ranks that
    share each layer. `stage`: the layers of this stage of a pipeline, of which the first one also
    has embedding and logits; None: all.
    """

    settings: ModelSettings
    device: torch.device
    capabilities: Capabilities
    fp8_weights: frozenset[str] = frozenset()
    fp8_products: bool = False
    experts: ExpertHooks | None = None
    planned: bool = False
    tensor_parallel: TensorParallel = SINGLE
    stage: range | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Number type of weights and activations."""
        return torch_dtype(self.settings)

    @property
    def cache_dtypes(self) -> CacheDtypes:
        """Number types of what the caches hold."""
        return model_cache_dtypes(self.settings)

    @property
    def num_positions(self) -> int:
        """The longest sequence, in tokens."""
        assert self.settings.max_seq_len is not None
        return self.settings.max_seq_len

    @property
    def block_size(self) -> int:
        """Tokens in a block of the KV cache."""
        assert self.settings.seq_size_per_block is not None
        return self.settings.seq_size_per_block

    def layer_options(self) -> LayerOptions:
        """How the layers at the top of the model keep their weights."""
        return LayerOptions(
            self.settings,
            self.device,
            self.capabilities,
            experts=self.experts,
            planned=self.planned,
            tensor_parallel=self.tensor_parallel,
            fp8_weights=self.fp8_weights,
            fp8_products=self.fp8_products and ops.has_kernel("fp8_linear", self.device.type),
        )

    def backend_options(self) -> BackendOptions:
        """What every attention backend is told."""
        return BackendOptions(
            capabilities=self.capabilities,
            dtype=self.dtype,
            kv_dtype=self.cache_dtypes.keys_and_values,
            block_size=self.block_size,
            settings=self.settings,
        )


class CausalLM(Layer):
    """A language model over a paged KV cache."""

    config: ModelConfig

    @abstractmethod
    def cache_groups(self) -> CacheGroups:
        """What its layers keep of a sequence, as they say it."""

    @abstractmethod
    def context_bytes(self, keys: int) -> int:
        """Memory that steps take at most because their queries see so many keys in all."""

    @abstractmethod
    def forward(self, batch: ForwardBatch) -> Tensor:
        """Hidden states [T, hidden] of the batch's tokens, normalised; fills the KV caches.

        On a stage of a pipeline but the last they are what the next one's layers go on from.
        """

    @property
    def has_logits(self) -> bool:
        """Whether compute_logits works here; False on pipeline stages after the first."""
        return True

    def stage_input(self, tokens: int) -> Tensor | None:
        """Room for ForwardBatch.hidden [tokens, hidden] on a stage that needs it, of zeros."""
        return None

    @property
    @abstractmethod
    def drafts(self) -> DraftModule | None:
        """What drafts for it; the two below are for models that have it."""

    @abstractmethod
    def draft_states(self, hidden: Tensor) -> Tensor:
        """States [T, width] that drafts go on from, of the tokens of the step that `forward`
        computed last, which gave ``hidden`` [T, hidden]."""

    @abstractmethod
    def draft(self, batch: ForwardBatch, states: Tensor, rows: Tensor | None = None) -> Tensor:
        """New states [T, ...], or of ``rows`` alone; see DraftModule.forward. Fills the KV cache
        of what drafts."""

    @abstractmethod
    def warm_up(self, kv_cache: Sequence[Tensor]) -> None:
        """Compile what kernels compile when they are first called; `kv_cache` of each layer."""

    @abstractmethod
    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [R, hidden] -> float32 logits [R, logit_columns]."""

    @property
    def logit_columns(self) -> range:
        """The tokens that compute_logits gives logits of: all, or those of this tensor-parallel
        rank, which are consecutive, and at least one."""
        return range(self.config.vocab_size)

    def gather_logits(self, logits: Tensor) -> Tensor:
        """Logits [R, logit_columns] of each rank -> [R, vocabulary] on every rank."""
        return logits


class Architecture(CausalLM):
    """A language model that config.json can name.

    CONFIG_DEFAULTS: what a key that config.json leaves out means. IGNORED_WEIGHTS: endings of names
    of tensors in checkpoints that hold nothing to load, IGNORED_PREFIXES: beginnings. TEXT_PREFIX:
    what names may begin with instead of "model." where a checkpoint has more than the text's part.
    """

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {}
    IGNORED_WEIGHTS: ClassVar[tuple[str, ...]] = ()
    IGNORED_PREFIXES: ClassVar[tuple[str, ...]] = ()
    TEXT_PREFIX: ClassVar[str] = ""

    @classmethod
    @abstractmethod
    def features(cls, raw: RawConfig) -> Features:
        """What this architecture adds to the common keys of config.json."""

    @classmethod
    @abstractmethod
    def mixers(cls, config: ModelConfig) -> tuple[MixerShape, ...]:
        """The sequence mixer of each layer."""

    @classmethod
    def mixers_here(cls, config: ModelConfig, ranks: TensorParallel) -> tuple[MixerShape, ...]:
        """This rank's part of each; DivisionError where there are no equal parts."""
        mixers = cls.mixers(config)
        return mixers if ranks.size == 1 else tuple(each.on_rank(ranks) for each in mixers)

    @classmethod
    def groups_of(
        cls, config: ModelConfig, dtypes: CacheDtypes, ranks: TensorParallel = SINGLE
    ) -> CacheGroups:
        """What its layers will keep of a sequence, on one of ``ranks``; nothing is made."""
        mixers = cls.mixers_here(config, ranks)
        return CacheGroups.of([mixer.cache_spec(dtypes) for mixer in mixers])

    @classmethod
    def backend_configs(
        cls, config: ModelConfig, options: ModelOptions
    ) -> list[BackendConfig | None]:
        """What the layers of each cache group ask of a backend."""
        ranks, asked = options.tensor_parallel, options.backend_options()
        mixers = cls.mixers_here(config, ranks)
        groups = cls.groups_of(config, options.cache_dtypes, ranks).groups
        return [mixers[group.layers[0]].backend_config(asked) for group in groups]

    @classmethod
    def explain_backends(cls, config: ModelConfig, options: ModelOptions) -> str:
        """Which backend is chosen for which layers, and why not the others.

        NoChoiceError where none is, as making the model raises it.
        """
        configs = dict.fromkeys(together(cls.backend_configs(config, options)))
        asked = [each for each in configs if each is not None]
        for each in asked:
            check_backend(each)
        return "\n".join(map(explain, asked))

    def ignores(self, name: str) -> bool:
        """Whether a checkpoint's tensor `name` holds nothing to load."""
        tied = ("lm_head.weight",) if self.config.tie_word_embeddings else ()
        if self.config.draft_layers and name.startswith("mtp."):
            return False
        if name in _MAPS:
            return True
        ends = name.endswith((*self.IGNORED_WEIGHTS, *tied))
        return ends or name.startswith(self.IGNORED_PREFIXES)
