# SPDX-License-Identifier: Apache-2.0
"""The interfaces of language models for the worker, and of their classes for the loader."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from rtp_llm.attention.model_inputs import NO_INPUTS, ModelInputs
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.device import Capabilities
from rtp_llm.distributed.tensor_parallel import SINGLE, TensorParallel
from rtp_llm.layers import IndexerShape, Layer, LayerOptions, MixerShape, torch_dtype
from rtp_llm.layers.moe import ExpertHooks
from rtp_llm.layers.weights.stored_format import StoredFormat
from rtp_llm.models.config import ModelConfig
from rtp_llm.models.drafts.draft_head import DraftModule
from rtp_llm.models.raw_config import RawConfig

# An EAGLE-3 head's maps from and to its vocabulary; the first is read separately from the weights.
_MAPS = ("eagle3.d2t", "eagle3.t2d")
_KV_DTYPES = {"fp8_e4m3": torch.float8_e4m3fn}


def model_cache_dtypes(settings: ModelSettings) -> CacheDtypes:
    """The dtypes of cache contents, for settings whose dtype is not "auto"."""
    dtype = torch_dtype(settings)
    kv_dtype = _KV_DTYPES.get(settings.kv_cache_dtype) or dtype
    return CacheDtypes.of(kv_dtype, dtype, settings)


@dataclass(frozen=True)
class ModelOptions:
    """Options for building a model, in addition to its config.

    `settings` are resolved: dtype, max_seq_len and seq_size_per_block have values. `device` is the
    torch device, `capabilities` are those of its kernels. `formats` are the stored
    formats of modules; `fp8_products`: the device multiplies FP8 weights as they are. `experts`:
    hooks for where experts are. `planned`: weights have shapes but no memory. `tensor_parallel`:
    the ranks that share each layer. `stage`: the layers of this pipeline stage; the first stage
    also has the embedding and the logits. None: all layers. `cache_scales`: see LayerOptions.
    """

    settings: ModelSettings
    device: torch.device
    capabilities: Capabilities
    formats: Mapping[str, StoredFormat] = field(default_factory=dict)
    fp8_products: bool = False
    experts: ExpertHooks | None = None
    planned: bool = False
    tensor_parallel: TensorParallel = SINGLE
    stage: range | None = None
    cache_scales: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def dtype(self) -> torch.dtype:
        """Number type of weights and activations."""
        return torch_dtype(self.settings)

    @property
    def cache_dtypes(self) -> CacheDtypes:
        """The dtypes of cache contents."""
        return model_cache_dtypes(self.settings)

    @property
    def num_positions(self) -> int:
        """The maximum sequence length, in tokens."""
        assert self.settings.max_seq_len is not None
        return self.settings.max_seq_len

    @property
    def block_size(self) -> int:
        """Tokens in a block of the KV cache."""
        assert self.settings.seq_size_per_block is not None
        return self.settings.seq_size_per_block

    def layer_options(self, inputs: ModelInputs = NO_INPUTS) -> LayerOptions:
        """The options of the top-level layers of a model with these ``inputs``."""
        return LayerOptions(
            self.settings,
            self.device,
            self.capabilities,
            experts=self.experts,
            planned=self.planned,
            tensor_parallel=self.tensor_parallel,
            formats=self.formats,
            fp8_products=self.fp8_products and ops.has_kernel("fp8_linear", self.device.type),
            inputs=inputs,
            cache_scales=self.cache_scales,
        )

    def backend_options(self) -> BackendOptions:
        """The options that every attention backend receives."""
        return BackendOptions(
            capabilities=self.capabilities,
            dtype=self.dtype,
            kv_dtype=self.cache_dtypes.keys_and_values,
            block_size=self.block_size,
            settings=self.settings,
        )


class CausalLM(Layer):
    """A language model over a paged KV cache. ``inputs``: what it is fed, and needs to be fed."""

    config: ModelConfig
    inputs: ModelInputs = NO_INPUTS

    @abstractmethod
    def cache_groups(self) -> CacheGroups:
        """The cache groups, collected from the model's layers."""

    @abstractmethod
    def context_bytes(self, keys: int) -> int:
        """Upper bound in bytes on the temporary memory of a step whose queries see `keys` keys."""

    @abstractmethod
    def forward(self, batch: ForwardBatch) -> Tensor:
        """Compute normalised hidden states [T, hidden] of the batch's tokens; fills the KV caches.

        On every pipeline stage but the last, returns the input of the next stage's layers.
        """

    @property
    def has_logits(self) -> bool:
        """Whether compute_logits works here; False on pipeline stages after the first."""
        return True

    def stage_input(self, tokens: int) -> Tensor | None:
        """A zeroed buffer for ForwardBatch.hidden [tokens, hidden], on stages that need one."""
        return None

    @property
    @abstractmethod
    def drafts(self) -> DraftModule | None:
        """The draft module, if any; the two methods below require one."""

    @abstractmethod
    def draft_states(self, hidden: Tensor) -> Tensor:
        """The states [T, width] from which drafts start, for the tokens of the last `forward`.

        ``hidden`` [T, hidden] is the result of that `forward`.
        """

    @abstractmethod
    def draft(self, batch: ForwardBatch, states: Tensor, rows: Tensor | None = None) -> Tensor:
        """Compute new draft states [T, ...], or those of ``rows`` only; see DraftModule.forward.

        Fills the KV cache of the draft module.
        """

    @abstractmethod
    def warm_up(self, kv_cache: Sequence[Tensor]) -> None:
        """Compile kernels that would otherwise compile on first use; `kv_cache` of each layer."""

    @abstractmethod
    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [R, hidden] -> float32 logits [R, logit_columns]."""

    def classify(self, states: Tensor) -> Tensor:
        """Pooled states [R, hidden] -> scores float32 [R, labels]; see ModelConfig.classifier."""
        raise NotImplementedError(f"{self.config.architecture} has no classifier")

    @property
    def logit_columns(self) -> range:
        """The range of tokens for which compute_logits returns logits.

        All tokens, or the consecutive ones of this tensor-parallel rank; never empty.
        """
        return range(self.config.vocab_size)

    def gather_logits(self, logits: Tensor) -> Tensor:
        """Logits [R, logit_columns] of each rank -> [R, vocabulary] on every rank."""
        return logits


class Architecture(CausalLM):
    """A language model that config.json can name.

    CONFIG_DEFAULTS: values of keys that config.json leaves out. IGNORED_WEIGHTS and
    IGNORED_PREFIXES: suffixes and prefixes of tensor names that are not loaded. TEXT_PREFIXES:
    what names may begin with, instead of "model.", in checkpoints that contain more than the text
    model; one of them in each checkpoint.
    EMBEDDING: the name of the first weight after that prefix, which checkpoints may lack.
    OVERFLOWS_FLOAT16: activations exceed its range.
    """

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {}
    IGNORED_WEIGHTS: ClassVar[tuple[str, ...]] = ()
    IGNORED_PREFIXES: ClassVar[tuple[str, ...]] = ()
    TEXT_PREFIXES: ClassVar[tuple[str, ...]] = ()
    EMBEDDING: ClassVar[str] = "embed_tokens.weight"
    OVERFLOWS_FLOAT16: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def read_config(cls, raw: RawConfig) -> ModelConfig:
        """Read config.json."""

    @classmethod
    @abstractmethod
    def mixers(cls, config: ModelConfig) -> tuple[MixerShape, ...]:
        """The sequence mixer of each layer."""

    @classmethod
    def local_mixers(cls, config: ModelConfig, ranks: TensorParallel) -> tuple[MixerShape, ...]:
        """This rank's part of each mixer; DivisionError if it cannot be divided evenly."""
        mixers = cls.mixers(config)
        return mixers if ranks.size == 1 else tuple(each.on_rank(ranks) for each in mixers)

    @classmethod
    def indexers(cls, config: ModelConfig) -> tuple[IndexerShape, ...]:
        """The indexers of layers, whose caches come after those of all mixers."""
        return ()

    @classmethod
    def groups_of(
        cls, config: ModelConfig, dtypes: CacheDtypes, ranks: TensorParallel = SINGLE
    ) -> CacheGroups:
        """The cache groups of its layers on one of ``ranks``, without creating the layers."""
        cached = cls.local_mixers(config, ranks) + cls.indexers(config)
        return CacheGroups.of([each.cache_spec(dtypes) for each in cached])

    @classmethod
    def backend_configs(
        cls, config: ModelConfig, options: ModelOptions
    ) -> list[BackendConfig | None]:
        """The backend config of each cache group."""
        ranks, requested = options.tensor_parallel, options.backend_options()
        configs = [each.backend_config(requested) for each in cls.local_mixers(config, ranks)]
        configs += [None] * len(cls.indexers(config))  # the backends of their layers run them
        groups = cls.groups_of(config, options.cache_dtypes, ranks).groups
        return [configs[group.layers[0]] for group in groups]

    @classmethod
    def explain_backends(cls, config: ModelConfig, options: ModelOptions) -> str:
        """Explain which backend is chosen for which layers, and why others are not.

        Raises NoChoiceError if none supports them, as creating the model would.
        """
        configs = dict.fromkeys(together(cls.backend_configs(config, options)))
        requested = [each for each in configs if each is not None]
        for each in requested:
            check_backend(each)
        return "\n".join(map(explain, requested))

    def ignores(self, name: str) -> bool:
        """Whether the checkpoint tensor `name` is not needed."""
        tied = ("lm_head.weight",) if self.config.tie_word_embeddings else ()
        if self.config.draft_layers and name.startswith("mtp."):
            return False
        if name in _MAPS:
            return True
        ends = name.endswith((*self.IGNORED_WEIGHTS, *tied))
        return ends or name.startswith(self.IGNORED_PREFIXES)
