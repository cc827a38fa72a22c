# SPDX-License-Identifier: Apache-2.0
"""The constraints of all sequences, as the engine and the sampling head use them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rtp_llm.worker.grammar.constraint import Constraint
from rtp_llm.worker.grammar.row_masks import MaskWriter, TokenMasks

if TYPE_CHECKING:
    from rtp_llm._runtime import Drafts, Result
    from rtp_llm.request.constraints import Thinking
    from rtp_llm.worker.forked_sequences import ForkedSequences
    from rtp_llm.worker.grammar.library import GrammarLibrary, Matcher
    from rtp_llm.worker.plan.step_plan import HeadPlan


class Constraints:
    """Belongs to the engine's thread. Steps commit their tokens before the masks of the next step
    are filled, so no constraint ever follows a token that is not committed."""

    def __init__(
        self,
        num_slots: int,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        library: GrammarLibrary | None = None,
        why_no_library: str = "",
    ) -> None:
        """``library`` is None if there are only thinking budgets and no grammars."""
        self.library, self.why_no_library = library, why_no_library
        self._eos = tuple(eos_token_ids)
        self._words = -(-vocab_size // 32)
        self._masks = np.empty((0, self._words), np.int32)
        self._by_id: dict[int, tuple[Constraint, int]] = {}  # and its slot
        self._constrained = np.zeros(num_slots, np.bool_)  # slots
        self._failures: dict[int, str] = {}

    def add(
        self,
        ids: Sequence[int],
        slots: Sequence[int],
        grammar: Matcher | None,
        thinking: Thinking | None,
    ) -> None:
        """Add sequences that were queued; each follows its own output."""
        for each, slot in zip(ids, slots, strict=True):
            self._by_id[each] = Constraint(grammar, thinking, self._eos), slot
            self._constrained[slot] = True

    def continuations(
        self, source: int, output: Sequence[int], last_tokens: Sequence[int]
    ) -> list[Constraint]:
        """The constraints, for `fork`, of sequences that continue the ``output`` of ``source`` with
        its last token replaced by one of ``last_tokens``; empty if it has no constraint.

        Raises:
            ValueError: the grammar forbids a last token.
        """
        if source not in self._by_id:
            return []
        constraint, _ = self._by_id[source]
        made = []
        for last in last_tokens:
            if last == output[-1]:
                made.append(constraint.copy())
                continue
            if last in self._eos:
                raise ValueError(f"last_tokens: grammar: token {last} ends the answer")
            made.append(constraint.restart())  # thinking cannot be taken back
            for token in (*output[:-1], last):
                made[-1].accept(token)
            if (error := made[-1].error) is not None:
                raise ValueError(f"last_tokens: grammar: {error}")
        return made

    def fork(self, forked: ForkedSequences, continuations: Sequence[Constraint]) -> None:
        """Add sequences that continue another one, with their constraints if it has one."""
        of_sequences = zip(forked.ids, continuations, forked.slots, strict=False)
        for each, constraint, slot in of_sequences:
            self._by_id[each] = constraint, slot
            self._constrained[slot] = True

    def reorder(
        self,
        ids: NDArray[np.int64],
        parents: NDArray[np.int32],
        last_tokens: NDArray[np.int32],
    ) -> None:
        """Let beam ``ids[i]`` continue what ``ids[parents[i]]`` has with ``last_tokens[i]``."""
        if int(ids[0]) not in self._by_id:
            return
        beams, continued, used = ids.tolist(), [], set()
        for parent in parents.tolist():
            constraint, _ = self._by_id[beams[parent]]
            continued.append(constraint.copy() if parent in used else constraint)
            used.add(parent)
        for each, constraint, token in zip(beams, continued, last_tokens.tolist(), strict=True):
            self._by_id[each] = constraint, self._by_id[each][1]
            self.accept(each, token)

    def end(self, ids: Iterable[int]) -> None:
        """Remove sequences that have ended; unknown ones are ignored."""
        for each in ids:
            if each in self._by_id:
                _, slot = self._by_id.pop(each)
                self._constrained[slot] = False
                self._failures.pop(each, None)

    def observe(self, result: Result) -> None:
        """Follow the tokens of a committed step."""
        if not self._by_id:
            return
        for each, tokens in zip(result.ids.tolist(), result.tokens.tolist(), strict=True):
            if each in self._by_id:
                constraint, _ = self._by_id[each]
                for token in tokens:
                    if token >= 0:
                        constraint.accept(token)
                if constraint.error is not None:
                    self._failures[each] = constraint.error

    def accept(self, sequence: int, token: int) -> None:
        """Follow one token of a sequence; sequences without a constraint are ignored."""
        if sequence not in self._by_id:
            return
        constraint, _ = self._by_id[sequence]
        constraint.accept(token)
        if constraint.error is not None:
            self._failures[sequence] = constraint.error

    def take_failures(self) -> dict[int, str]:
        """Return sequences that cannot continue and the reasons, each once."""
        failures, self._failures = self._failures, {}
        return failures

    def fill(self, plan: HeadPlan, draft_tokens: NDArray[np.int32]) -> TokenMasks | None:
        """The masks of a step's rows; None if no row is constrained. The next call reuses them.

        ``draft_tokens`` [R] holds the draft that follows each of the plan's rows; a negative one,
        and whatever follows it, is never accepted.
        """
        drafted = plan.num_outputs < plan.num_rows
        first_rows = plan.row_cu[:-1] if drafted else slice(None)
        outputs = np.flatnonzero(self._constrained[plan.row_slots[first_rows]])
        if not len(outputs):
            return None
        ids = plan.row_ids[first_rows][outputs].tolist()
        writer = MaskWriter()
        if drafted:
            self._write_drafted(writer, zip(ids, outputs.tolist(), strict=True), plan, draft_tokens)
        else:
            for each, row in zip(ids, outputs.tolist(), strict=True):
                self._by_id[each][0].write(writer, row, ())
        if not writer.rows:
            return None
        if len(self._masks) < len(writer.rows):
            self._masks = np.empty((2 * len(writer.rows), self._words), np.int32)
        masks = self._masks[: len(writer.rows)]
        writer.fill(masks, self.library)
        self._look_for_errors(writer, plan)
        return TokenMasks(masks, np.array(writer.rows, np.int32))

    def _write_drafted(
        self,
        writer: MaskWriter,
        outputs: Iterable[tuple[int, int]],
        plan: HeadPlan,
        draft_tokens: NDArray[np.int32],
    ) -> None:
        """``outputs``: id and number of each."""
        row_cu, tokens = plan.row_cu.tolist(), draft_tokens.tolist()
        for each, output in outputs:
            first, end = row_cu[output], row_cu[output + 1]
            known = itertools.takewhile(lambda token: token >= 0, tokens[first : end - 1])
            self._by_id[each][0].write(writer, first, [*known])

    def _look_for_errors(self, writer: MaskWriter, plan: HeadPlan) -> None:
        for task in writer.tasks:
            if (error := task.matcher.error) is not None:
                self._failures[int(plan.row_ids[writer.rows[task.row]])] = error

    def cut(self, drafts: Drafts | None) -> Drafts | None:
        """Drop drafts from the first one that a constraint forbids; drafts that only the device
        knows are kept, since masks deal with them."""
        if drafts is None or not self._by_id:
            return drafts
        ids, tokens, lengths = drafts
        kept = lengths.copy()
        for row, each in enumerate(ids.tolist()):
            if each not in self._by_id or not lengths[row] or tokens[row, 0] < 0:
                continue
            known = tokens[row, : lengths[row]]
            known = known[: np.argmax(known < 0) if (known < 0).any() else None]
            valid = self._by_id[each][0].count_valid(known.tolist())
            kept[row] = lengths[row] if valid == len(known) else valid
        return ids, tokens, kept

    def forced(self, sequence: int) -> list[int]:
        """Tokens that a sequence must continue with, once its last one was committed."""
        return self._by_id[sequence][0].forced() if sequence in self._by_id else []
