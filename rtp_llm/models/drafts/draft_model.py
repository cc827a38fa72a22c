# SPDX-License-Identifier: Apache-2.0
"""A smaller model with the same vocabulary that drafts for a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from rtp_llm.attention import (
    CacheDtypes,
    CacheGroups,
    CacheSpec,
    ForwardBatch,
    SlidingWindowSpec,
)
from rtp_llm.distributed.tensor_parallel import SINGLE, TensorParallel
from rtp_llm.models.causal_lm import CausalLM
from rtp_llm.models.config import ModelConfig
from rtp_llm.models.drafts.draft_head import DraftModule
from rtp_llm.models.registry import model_class


def cache_groups_of(
    config: ModelConfig, dtypes: CacheDtypes, ranks: TensorParallel = SINGLE
) -> CacheGroups:
    """Cache groups of the model's layers on one of ``ranks``, followed by its draft model's.

    The draft model is not sharded: every rank holds all of it.
    """
    own = model_class(config.architecture).groups_of(config, dtypes, ranks)
    draft = config.draft_model
    if draft is None:
        return own
    return _together(own, model_class(draft.architecture).groups_of(draft, dtypes))


def _together(target: CacheGroups, draft: CacheGroups) -> CacheGroups:
    """Merge both models' groups.

    The draft model also computes the token before a step's first one, so its windows see one more.
    """
    return CacheGroups.of(target.specs + tuple(map(_one_wider, draft.specs)))


def _one_wider(spec: CacheSpec | None) -> CacheSpec | None:
    return replace(spec, window=spec.window + 1) if isinstance(spec, SlidingWindowSpec) else spec


@dataclass(frozen=True)
class _Part:
    """One of two models that share a cache: its layers, and the global index of each group."""

    layers: slice
    groups: tuple[int, ...]
    layer_group: tuple[int, ...]

    @classmethod
    def of(cls, own: CacheGroups, whole: CacheGroups, first: int) -> _Part:
        """The part for the layers of ``own``, which start at layer ``first`` of the ``whole``."""
        groups = tuple(whole.layer_group[first + group.layers[0]] for group in own.groups)
        return cls(slice(first, first + len(own.specs)), groups, own.layer_group)

    def batch(self, batch: ForwardBatch) -> ForwardBatch:
        """The batch restricted to this model's layers and groups."""
        if not self.layers.start and self.groups == tuple(range(len(self.groups))):
            return batch  # a model ignores entries past its own layers and groups

        def own(of_groups: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(of_groups[group] for group in self.groups) if of_groups else ()

        def shifted(hook: Callable[[int], None] | None) -> Callable[[int], None] | None:
            return None if hook is None else lambda layer: hook(self.layers.start + layer)

        host = batch.host
        if host is not None:
            host = replace(host, block_table=tuple(host.block_table[g] for g in self.groups))
        return replace(
            batch,
            slot_mapping=own(batch.slot_mapping),
            block_table=own(batch.block_table),
            kv_cache=batch.kv_cache[self.layers],
            layer_group=self.layer_group,
            host=host,
            states=batch.states[self.layers],
            state_read=own(batch.state_read),
            state_write=own(batch.state_write),
            before_layer=shifted(batch.before_layer),
            on_written=shifted(batch.on_written),
        )


class DraftModel(DraftModule):
    """A complete draft model, which needs tokens only; its states are hidden states [T, hidden]."""

    width = 0

    def __init__(self, model: CausalLM, part: _Part) -> None:
        super().__init__()
        self.model, self._part = model, part

    def forward(
        self, ids: Tensor, states: Tensor, batch: ForwardBatch, rows: Tensor | None = None
    ) -> Tensor:
        hidden: Tensor = self.model(replace(self._part.batch(batch), token_ids=ids))
        return hidden if rows is None else hidden.index_select(0, rows)

    def logits(self, states: Tensor) -> Tensor:
        return self.model.compute_logits(states)


class WithDraftModel(CausalLM):
    """A model and its draft model, whose layers are numbered after the model's own.

    A token has the same position and the same slots in both, so whatever the runtime does with
    blocks (prefix cache, forks, preemption) is correct for both: a model's keys at a position
    depend only on the tokens up to that position.
    """

    def __init__(self, target: CausalLM, draft: CausalLM) -> None:
        super().__init__()
        self.config, self.inputs = target.config, target.inputs
        own, further = target.cache_groups(), draft.cache_groups()
        self._groups = _together(own, further)
        self._part = _Part.of(own, self._groups, 0)
        draft_part = _Part.of(further, self._groups, len(own.specs))
        self.target, self.draft_model = target, DraftModel(draft, draft_part)

    def cache_groups(self) -> CacheGroups:
        return self._groups

    def context_bytes(self, keys: int) -> int:
        models = self.target, self.draft_model.model
        return max(model.context_bytes(keys) for model in models)  # they run one after another

    def forward(self, batch: ForwardBatch) -> Tensor:
        hidden: Tensor = self.target(self._part.batch(batch))
        return hidden

    @property
    def drafts(self) -> DraftModule:
        return self.draft_model

    def draft_states(self, hidden: Tensor) -> Tensor:
        return hidden[:, :0]

    def draft(self, batch: ForwardBatch, states: Tensor, rows: Tensor | None = None) -> Tensor:
        new: Tensor = self.draft_model(batch.token_ids, states, batch, rows)
        return new

    def warm_up(self, kv_cache: Sequence[Tensor]) -> None:
        count = self._part.layers.stop
        self.target.warm_up(kv_cache[:count])
        self.draft_model.model.warm_up(kv_cache[count:])

    def compute_logits(self, hidden: Tensor) -> Tensor:
        return self.target.compute_logits(hidden)

    @property
    def logit_columns(self) -> range:
        return self.target.logit_columns

    def gather_logits(self, logits: Tensor) -> Tensor:
        return self.target.gather_logits(logits)
