# SPDX-License-Identifier: Apache-2.0
"""The sampling head: from logits to one token per row, without a loop over requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm import ops
from rtp_llm.worker.heads import sampling_flags as flag
from rtp_llm.worker.heads.beam_scores import BeamScores, ScoredBeams
from rtp_llm.worker.heads.beam_table import BeamTable
from rtp_llm.worker.heads.logits_processor import ProcessorTable
from rtp_llm.worker.heads.logprob_ids import LogprobIds
from rtp_llm.worker.heads.ragged_table import RaggedTable
from rtp_llm.worker.heads.sample_handle import RowScores, SampleHandle
from rtp_llm.worker.heads.slot_settings import RowSettings, SlotSettings
from rtp_llm.worker.heads.token_rules import AllowedTokens, BannedSequences
from rtp_llm.worker.heads.typical import TypicalSampling

if TYPE_CHECKING:
    from rtp_llm.device import Device
    from rtp_llm.worker.forked_sequences import ForkedSequences
    from rtp_llm.worker.grammar.row_masks import TokenMasks
    from rtp_llm.worker.heads.logit_shards import LogitShards
    from rtp_llm.worker.new_sequences import NewSequences
    from rtp_llm.worker.plan.step_plan import SamplingRows
    from rtp_llm.worker.sampled_tokens import SampledTokens


@dataclass(frozen=True)
class SampledDrafts:
    """The draft that follows each row: ``drafts`` int32 [R], -1 for none, each sampled from its
    row of ``logits`` float32 [R or more, draft vocabulary]. ``columns``: see `rejection_sample`."""

    drafts: Tensor
    logits: Tensor
    columns: Tensor | None


@dataclass(frozen=True)
class _RawRows:
    """Logits [L, vocabulary] of ``rows`` [L], ``wanted`` [L] log-probabilities of each; of
    ``beams`` as they were changed."""

    logits: Tensor
    rows: NDArray[np.int64]
    wanted: NDArray[np.int32]
    beams: ScoredBeams | None = None


class Sampler:
    """Samples tokens. A sequence's settings are written once, under its slot, when it is added."""

    def __init__(
        self,
        num_slots: int,
        device: Device,
        sampled: SampledTokens | None = None,
        shards: LogitShards | None = None,
    ) -> None:
        """``sampled`` keeps each step's tokens for the step that is submitted after it; ``shards``
        is for ranks that sample the same tokens."""
        self._device, self._shards = device, shards
        self._sampled = sampled
        self._upload = device.upload
        self._settings = SlotSettings(num_slots, device)
        self._min_tokens = np.zeros(num_slots, np.int64)
        self._wanted_logprobs = np.full(num_slots, -1, np.int32)
        self._stop_ids = RaggedTable(num_slots)
        self._biases = RaggedTable(num_slots)
        self._allowed = AllowedTokens(num_slots, device)
        self._banned = BannedSequences(num_slots, device)
        self._typical = TypicalSampling(num_slots, device)
        self._logprob_ids = LogprobIds(num_slots, device)
        self._processors = ProcessorTable(num_slots, device)
        self._beam_scores = BeamScores(num_slots, device)
        self.beams = BeamTable(num_slots, device, sampled)

    def add(self, sequences: NewSequences) -> None:
        """Write the settings of a new request's sequences."""
        slots, params, stop_ids = sequences.slots, sequences.sampling, sequences.stop_ids
        self._settings.put(slots, params, sequences.seeds)
        if self.beams:
            self.beams.assign(sequences.ids, slots)
        self._typical.put(slots, params)
        self._beam_scores.put(slots, sequences.beam_search and _modifies(sequences))
        self._min_tokens[slots] = params.min_tokens
        self._logprob_ids.put(slots, params.logprob_token_ids)
        none_wanted = params.logprobs is None and not params.logprob_token_ids
        self._wanted_logprobs[slots] = -1 if none_wanted else params.logprobs or 0
        self._allowed.put(slots, params.allowed_token_ids)
        words = params.bad_words_token_ids
        single = [word[0] for word in words if len(word) == 1]
        biased = [*params.logit_bias, *single]
        values = [*params.logit_bias.values(), *[-np.inf] * len(single)]
        for slot in slots:
            if params.min_tokens:
                self._stop_ids.put(slot, stop_ids, [-np.inf] * len(stop_ids))
            # Empty lists too: all rows are gathered, and a slot's last request may have had some.
            self._biases.put(slot, biased, values)
            self._banned.put(slot, [word for word in words if len(word) > 1])
        if sequences.processors:
            self._processors.add(sequences.processors, list(slots))

    def fork(self, forked: ForkedSequences) -> None:
        """Copy the settings of a sequence to those that continue it."""
        source, slots = forked.source_slot, list(forked.slots)
        self._settings.copy(source, slots, forked.seeds)
        for values in (self._min_tokens, self._wanted_logprobs):
            values[slots] = values[source]
        for table in (
            self._stop_ids,
            self._biases,
            self._allowed,
            self._banned,
            self._typical,
            self._logprob_ids,
            self._processors,
            self._beam_scores,
        ):
            table.copy(source, slots)

    @property
    def chooses_beams(self) -> bool:
        """Whether the next step may be submitted before the host knows what beams choose."""
        return self._sampled is not None and self._shards is None

    def release(self, slots: NDArray[np.int32] | list[int]) -> None:
        """The sequences of ``slots`` have ended; needed only for those with processors."""
        self._processors.release(slots)

    def submit(
        self,
        logits: Tensor,
        plan: SamplingRows,
        previous: NDArray[np.int32] | None = None,
        drafts: SampledDrafts | None = None,
        masks: TokenMasks | None = None,
    ) -> SampleHandle:
        """Sample a token for each row of ``logits`` (float32 [R, vocabulary], or this rank's
        columns of it, changed in place).

        ``previous`` are the tokens of the previous step, if the histories of rows with logits
        processors may name them. Rows with ``drafts`` take their draft if rejection sampling
        accepts it, rows with ``masks`` only what these allow.
        Never waits; the arrays of ``plan`` may change afterwards.
        """
        flags = plan.sampling_flags
        if self._shards is not None:
            if self._needs_no_gather(plan, drafts, self._shards):
                return self._sample_shards(logits, plan, self._shards)
            logits = self._shards.gather(logits)
        raw = self._keep_raw(logits, plan) if flags & flag.LOGPROBS else None
        changes_beams = flags & flag.BEAMS and flags & flag.MODIFYING
        beams = self._beam_scores.normalize(logits, plan.row_slots) if changes_beams else None
        if flags & (flag.RANDOM | flag.MODIFYING):
            settings, steps = self._prepare(logits, plan, previous, masks)
        else:
            settings = self._greedy(plan)
            steps = settings.seeds  # nothing is sampled at random
        sampled = _sample(logits, settings, steps, drafts if flags & flag.RANDOM else None)
        if beams is not None and len(beams) and raw is not None:
            raw = self._with_scores(raw, logits, beams, sampled[1])
        if self._shards is not None:
            self._shards.share(sampled[0])
        return self._score(sampled, plan, raw, ops.top_logprobs)

    def _score(
        self,
        sampled: tuple[Tensor, Tensor],
        plan: SamplingRows,
        raw: _RawRows | None,
        top_logprobs: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor, Tensor]],
    ) -> SampleHandle:
        """Add the log-probabilities of rows that want them; without `raw` none does."""
        if self._sampled is not None:
            self._sampled.keep(sampled[0])
        if raw is None:
            return SampleHandle(self._device, sampled)
        picked = sampled[0]
        if len(raw.rows) < plan.num_rows:
            picked = picked.index_select(0, self._upload(raw.rows))
        slots = plan.row_slots[raw.rows]
        width = min(max(1, int(raw.wanted.max())), raw.logits.shape[1])
        chosen, values, ids = top_logprobs(raw.logits, picked, width)
        if raw.beams is not None:
            values = raw.beams.scores(values)
        beams = self.beams.select(raw.rows, slots, values, ids) if self.beams else None
        own = self._logprob_ids.counts[slots]
        wanted = np.where(own, own, np.minimum(raw.wanted, width))
        scores = chosen, *self._logprob_ids.replace(raw.logits, slots, values, ids)
        found = RowScores(raw.rows.astype(np.int32), wanted, scores)
        if beams is None:
            return SampleHandle(self._device, sampled, found)
        others = np.flatnonzero(~beams.is_beam)
        rest = found.of(others, self._upload(others)) if len(others) else None
        return SampleHandle(self._device, sampled, rest, beams)

    def _needs_no_gather(
        self, plan: SamplingRows, drafts: SampledDrafts | None, shards: LogitShards
    ) -> bool:
        """Whether ranks can sample from their own columns, without gathering all of them."""
        flags = plan.sampling_flags
        if flags & ~(flag.RANDOM | flag.LOGPROBS | flag.BEAMS) or (
            drafts is not None and flags & flag.RANDOM
        ):
            return False
        if not flags & flag.LOGPROBS:
            return True
        slots = plan.row_slots
        most = max(1, int(self._wanted_logprobs[slots].max()))
        return most <= shards.least_columns and not self._logprob_ids.counts[slots].any()

    def _sample_shards(
        self, logits: Tensor, plan: SamplingRows, shards: LogitShards
    ) -> SampleHandle:
        """Sample from shards, where nothing but the rows' settings matters."""
        flags = plan.sampling_flags
        raw = self._keep_raw(logits, plan) if flags & flag.LOGPROBS else None
        if flags & flag.RANDOM:
            sampled = shards.sample(logits, *self._prepare(logits, plan, None, None))
        else:
            sampled = shards.best(logits, self._greedy(plan))
        return self._score(sampled, plan, raw, shards.top_logprobs)

    def _greedy(self, plan: SamplingRows) -> RowSettings:
        return self._settings.greedy(plan.num_rows)

    def _prepare(
        self,
        logits: Tensor,
        plan: SamplingRows,
        previous: NDArray[np.int32] | None,
        masks: TokenMasks | None,
    ) -> tuple[RowSettings, Tensor]:
        """Edit the logits as the rows request; returns the rows' settings and step numbers."""
        flags = plan.sampling_flags
        if masks is not None:
            ops.apply_token_bitmask(logits, *self._device.upload_all(*masks))
        if flags & flag.PROCESSORS:
            self._processors.apply(logits, plan, previous)
        with_history = bool(flags & (flag.PENALTIES | flag.NGRAM | flag.BAD_WORDS))
        history = (plan.history_tokens, plan.history_cu) if with_history else ()
        slots = plan.row_slots
        correction = None if self._sampled is None else self._sampled.correction
        places = () if correction is None else (correction.of_row,)
        settings, (steps, *rest) = self._settings.gather(slots, plan.row_steps, *places, *history)
        if correction is not None:
            of_row, *rest = rest
            steps = steps - correction.rejected.index_select(0, of_row)
        if flags & flag.ALLOWED:
            self._allowed.apply(logits, slots)
        if flags & flag.MIN_TOKENS:
            early = np.flatnonzero(plan.row_steps < self._min_tokens[slots])
            self._add_pairs(logits, self._stop_ids, slots[early], early)
        if flags & flag.BIAS:
            rows = np.arange(plan.num_rows)
            self._add_pairs(logits, self._biases, slots, rows)
        if with_history:
            self._edit_by_history(logits, flags, settings, steps, *rest)
        if flags & flag.BAD_WORDS:
            self._banned.apply(logits, slots, steps, *rest)
        if flags & flag.TYPICAL:
            settings = self._typical.apply(logits, settings, slots)
        return settings, steps

    def _edit_by_history(
        self,
        logits: Tensor,
        flags: int,
        settings: RowSettings,
        steps: Tensor,
        tokens: Tensor,
        cu_tokens: Tensor,
    ) -> None:
        if self._sampled is not None:
            self._sampled.substitute(tokens)
        if flags & flag.PENALTIES:
            penalties = settings.repetition, settings.presence, settings.frequency
            # The n-th token of an output is sampled after n generated ones.
            ops.apply_penalties(logits, tokens, cu_tokens, steps, *penalties)
        if flags & flag.NGRAM:
            ops.ban_repeated_ngrams(logits, tokens, cu_tokens, settings.ngram_size)

    def _add_pairs(
        self,
        logits: Tensor,
        table: RaggedTable,
        slots: NDArray[np.int32],
        rows: NDArray[np.int64],
    ) -> None:
        pairs = table.gather(slots, rows.astype(np.int32))
        if len(pairs.rows):
            ops.add_logit_bias(logits, *self._device.upload_all(*pairs))

    def _keep_raw(self, logits: Tensor, plan: SamplingRows) -> _RawRows:
        """Keep the model's own logits of rows that want log-probabilities, and those rows."""
        wanted = self._wanted_logprobs[plan.row_slots]
        rows = np.flatnonzero(wanted >= 0)
        if len(rows) < plan.num_rows:
            return _RawRows(logits.index_select(0, self._upload(rows)), rows, wanted[rows])
        will_change = plan.sampling_flags & flag.MODIFYING
        return _RawRows(logits.clone() if will_change else logits, rows, wanted)

    def _with_scores(
        self, raw: _RawRows, logits: Tensor, beams: NDArray[np.int64], status: Tensor
    ) -> _RawRows:
        """With the changed logits of the rows ``beams``."""
        places = np.searchsorted(raw.rows, beams)
        scored = self._beam_scores.take(logits, beams, status, places, raw.logits)
        return replace(raw, beams=scored)


def _modifies(sequences: NewSequences) -> bool:
    """Whether logits are changed for the sequences."""
    flags = flag.sampling_flags(
        sequences.sampling, bool(sequences.processors), constrained=sequences.constrained
    )
    return bool(flags & flag.MODIFYING)


def _sample(
    logits: Tensor, settings: RowSettings, steps: Tensor, drafts: SampledDrafts | None
) -> tuple[Tensor, Tensor]:
    """Tokens and status of each row."""
    given = (
        logits,
        settings.temperature,
        settings.top_k,
        settings.top_p,
        settings.min_p,
        settings.seeds,
        steps,
    )
    if drafts is None:
        return ops.sample(*given)
    return ops.rejection_sample(*given, drafts.drafts, drafts.logits, drafts.columns)
