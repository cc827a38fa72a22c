# SPDX-License-Identifier: Apache-2.0
"""The inputs of a model's steps: copies of their plans' numbers, and embeddings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rtp_llm.attention.batch import ForwardBatch, HostNumbers
from rtp_llm.attention.embeddings import IndexedEmbeddings
from rtp_llm.attention.model_inputs import InputNeeds
from rtp_llm.worker.inputs.beam_order import BeamOrder
from rtp_llm.worker.inputs.embedding_store import EmbeddingStore
from rtp_llm.worker.inputs.graph_embeddings import GraphEmbeddings
from rtp_llm.worker.inputs.graph_inputs import GraphInputs
from rtp_llm.worker.plan.arrays import device_arrays
from rtp_llm.worker.plan.extents import Extent

if TYPE_CHECKING:
    from rtp_llm.device import Device
    from rtp_llm.models.causal_lm import CausalLM
    from rtp_llm.worker.cache.kv_cache import KVCache
    from rtp_llm.worker.forked_sequences import ForkedSequences
    from rtp_llm.worker.inputs.graph_sizes import GraphSize
    from rtp_llm.worker.new_sequences import NewSequences
    from rtp_llm.worker.plan.step_plan import StepPlan
    from rtp_llm.worker.sampled_tokens import SampledTokens


class StepInputs:
    """Makes batches that run eagerly, and the memory that graphs read (`for_graphs`).

    A model gets what it needs (CausalLM.inputs) and nothing else is copied.
    """

    def __init__(
        self, model: CausalLM, cache: KVCache, device: Device, sampled: SampledTokens | None = None
    ) -> None:
        """With ``sampled``, plans may have to be corrected: see SampledTokens."""
        self._needs = needs = model.inputs.needs
        self._cache, self._device, self._sampled = cache, device, sampled
        self._arrays = device_arrays(needs.settings)
        self._embeddings: EmbeddingStore | None = None
        if needs.embedding_width:
            self._embeddings = EmbeddingStore(needs.embedding_width, needs.embedding_dtype)

    def add(self, sequences: NewSequences) -> None:
        """Keep the embeddings of sequences that later plans name."""
        if self._embeddings is not None:
            self._embeddings.add(sequences)

    def fork(self, forked: ForkedSequences) -> None:
        """Share the embeddings of a sequence with those that continue it."""
        if self._embeddings is not None:
            self._embeddings.fork(forked)

    def end(self, ids: Iterable[int]) -> None:
        """Drop the embeddings of sequences that no later plan names."""
        if self._embeddings is not None:
            self._embeddings.end(ids)

    def upload(self, plan: StepPlan) -> ForwardBatch:
        """The batch of a step that runs eagerly, in a single copy to the device."""
        groups = len(plan.slot_mapping)
        correction = self._sampled.correction if self._sampled is not None else None
        embeddings = None if self._embeddings is None else self._embeddings.rows_of(plan)
        uploaded = self._device.upload_all(
            *(getattr(plan, each.name) for each in self._arrays),
            *plan.slot_mapping,
            *plan.block_table,
            *(plan.state_read + plan.state_write if self._cache.recurrent else ()),
            *(() if correction is None else (correction.of_sequence,)),
            *(() if embeddings is None else (embeddings.raw, embeddings.places)),
        )
        arrays: dict[str, Any] = {
            each.name: tensor for each, tensor in zip(self._arrays, uploaded, strict=False)
        }
        rest = list(uploaded[len(arrays) :])
        if "second_texts" in arrays and not plan.second_texts.any():
            arrays["second_texts"] = None  # all tokens have the first type
        if embeddings is not None:
            places, raw = rest.pop(), rest.pop()
            arrays["embeddings"] = IndexedEmbeddings(raw.view(self._needs.embedding_dtype), places)
        corrected = None if correction is None else rest.pop()
        forward = ForwardBatch(
            **arrays,
            slot_mapping=tuple(rest[:groups]),
            block_table=tuple(rest[groups : 2 * groups]),
            state_read=tuple(rest[2 * groups : 3 * groups]),
            state_write=tuple(rest[3 * groups :]),
            max_seqlen_q=plan.max_seqlen_q,
            max_seqlen_k=plan.max_seqlen_k,
            kv_cache=self._cache.layers,
            layer_group=self._cache.layer_group,
            states=self._cache.states,
            host=HostNumbers(plan.cu_seqlens_q, plan.seq_lens, plan.block_table),
        )
        if correction is None or corrected is None:
            return forward
        return correction.apply(forward, corrected, self._cache.block_size)

    def ordered(self, batch: ForwardBatch, beams: BeamOrder) -> ForwardBatch:
        """A batch that was uploaded, with the block tables of beams ordered."""
        host = batch.host
        assert host is not None
        if not self._device.asynchronous:  # the tensors are the plan's own arrays
            tables = tuple(table.clone() for table in batch.block_table)
            slots = tuple(each.clone() for each in batch.slot_mapping)
            host = replace(host, block_table=tuple(table.numpy() for table in tables))
            batch = replace(batch, block_table=tables, slot_mapping=slots)
        batch = replace(batch, host=replace(host, exact=not self._device.asynchronous))
        beams.apply(batch, self._cache)
        return batch

    def for_graphs(
        self,
        most: GraphSize,
        max_model_len: int,
        block_size: int,
        padding_slot: int,
        hidden: Tensor | None,
    ) -> GraphInputs:
        """Memory for steps of up to ``most``: see GraphInputs."""
        embeddings: GraphEmbeddings | None = None
        if self._embeddings is not None:
            embeddings = GraphEmbeddings(self._embeddings, self._needs, most.tokens, self._device)
        return GraphInputs(
            self._cache,
            self._device,
            most,
            max_model_len,
            block_size,
            self._sampled,
            padding_slot,
            hidden,
            self._arrays,
            embeddings,
        )


def padding(needs: InputNeeds, tokens: int, sequences: int, device: torch.device) -> dict[str, Any]:
    """Fields of a ForwardBatch that only some models need, for a step made by hand: no offsets and
    no adapters, and a row of zeros in the place of each embedding."""
    lengths = {Extent.TOKENS: tokens, Extent.TOKEN_AXES: tokens, Extent.SEQUENCES: sequences}
    fields: dict[str, Any] = {}
    for each in device_arrays(needs.settings):
        if each.needs is not None:
            width = (each.extent.width,) if each.extent.width > 1 else ()
            shape = (lengths[each.extent], *width)
            value = each.padding or 0
            fields[each.name] = torch.full(shape, value, dtype=torch.int32, device=device)
    if needs.embedding_width:
        shape = (tokens, needs.embedding_width)
        rows = torch.zeros(shape, dtype=needs.embedding_dtype, device=device)
        fields["embeddings"] = IndexedEmbeddings(rows, torch.arange(tokens, device=device))
    return fields
