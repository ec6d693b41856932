"""Distinct token sequences scored in batches, with the whole distributions where they are asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from evalguard.errors import EvaluationError
from evalguard.models.hf.batch_cuts import cut_by_number, cut_by_tokens
from evalguard.models.hf.batch_scoring import BatchScoring
from evalguard.models.hf.longrope import longrope_switch_length
from evalguard.models.hf.packed_batch import PackedBatch, pad_batch
from evalguard.models.hf.scored_tokens import (
    InputTokens,
    ScoredTokens,
    UnscorablePairError,
    refuse_empty_side,
)
from evalguard.models.hf.sharing_plan import plan_sharing
from evalguard.models.hf.smaller_batches import (
    OUT_OF_MEMORY,
    BatchTooLargeError,
    retry_with_smaller_batches,
)

if TYPE_CHECKING:
    pass


IdPair = tuple[Sequence[int], Sequence[int]]

DEFAULT_TOKEN_BUDGET = 1024
# What a forward pass costs beside its tokens, as a share of the budget: at a budget from which on
# more tokens at a time are no faster, it is a few percent.
_PASS_COST_SHARE = 1 / 32


class PieceScoring(BatchScoring):
    """HFLM whose scores depend on the model and the token ids only.

    Batches are cut from the distinct token sequences of a block sorted by length, so that neither
    the order of requests nor duplicates change a score. Where the longest sequence of a batch would
    change the others' scores (longrope), they do not share a batch.

    Attributes:
        sequences: as of ``GuardedGeneration``; None: as many as ``token_budget``, padded tokens,
            has room for.
        unshared: why prefixes cannot be shared, though they are to be.
        room_note: what is to be said where memory ran out; else "".
    """

    token_budget: int = DEFAULT_TOKEN_BUDGET
    unshared: str = ""
    room_note = ""
    _only_encoding = False

    def score_pairs(self, pairs: Sequence[IdPair]) -> list[ScoredTokens]:
        """Score (context ids, continuation ids) pairs of a causal model; answers in order asked.

        Raises:
            UnscorablePairError: an empty context or continuation, a continuation that is longer
                than the model's context, a token id that the model does not know.
        """
        fed = self._all_fed(pairs)
        if self._only_encoding:
            return [_without_scores(piece) for piece in fed]
        found = retry_with_smaller_batches([self], lambda: self.score_batches(self.batches(fed)))
        answers = {scored.fed: scored for scored in found}
        return [answers[piece] for piece in fed]

    @contextmanager
    def only_encoding(self) -> Iterator[None]:
        """Encode what is asked and score nothing: the answers show what would be fed."""
        self._only_encoding = True
        try:
            yield
        finally:
            self._only_encoding = False

    def batches(self, pieces: Iterable[InputTokens]) -> Iterator[PackedBatch]:
        """Cut the distinct pieces into batches; those that share prefixes first, in trees.

        Raises:
            FallbackError: trees of these pieces turn out to be scored otherwise, or so does the
                longest of them at its scored positions only.
        """
        switch = longrope_switch_length(self.config)
        distinct = set(pieces)
        self.check_rows(distinct)
        beyond = {p for p in distinct if switch is not None and len(p.ids) - 1 > switch}
        for group in (beyond, distinct - beyond):
            alone: Iterable[InputTokens] = group
            if self.sharing is not None:
                # a trunk below the length at which frequencies switch would have the others
                plan = plan_sharing(
                    group, widest=self.token_budget, cut=self._cut, trunks=group is not beyond
                )
                with self.giving_up():
                    yield from self.sharing.batches(self, plan)
                alone = plan.alone
            yield from self.plain_batches(alone)

    def plain_batches(self, pieces: Iterable[InputTokens]) -> Iterator[PackedBatch]:
        """Cut distinct pieces into batches with a row for each, the longest first."""
        longest_first = sorted(
            pieces, key=lambda piece: (-len(piece.ids), piece.ids, piece.n_scored)
        )
        start = 0
        for size in self._cut([len(piece.ids) - 1 for piece in longest_first]):
            yield pad_batch(longest_first[start : start + size])
            start += size

    def make_room(self, found: BatchTooLargeError) -> bool:
        """Cut smaller batches from now on, after one that was too large; whether that can be."""
        if self.sequences is None:
            if found.tokens > self.token_budget:  # what cannot be cut any smaller
                return False
            self.token_budget = max(1, found.tokens // 2)
            most = f"{self.token_budget:,} padded tokens"
        else:
            if found.sequences == 1:
                return False
            self.sequences = min(self.sequences, found.sequences // 2)
            most = f"{self.sequences} sequences"
        self.room_note = f"{OUT_OF_MEMORY}: batches were halved, to {most} at last"
        return True

    def _cut(self, lengths: Sequence[int]) -> list[int]:
        if self.sequences is not None:
            return cut_by_number(len(lengths), self.sequences)
        budget = self.token_budget
        return cut_by_tokens(lengths, budget=budget, per_batch=budget * _PASS_COST_SHARE)

    def _all_fed(self, pairs: Sequence[IdPair]) -> list[InputTokens]:
        fed = []
        # Looked up once: lm-eval and transformers go through their configs every time.
        longest, embedded = self.max_length, self.embedded
        for position, (context, continuation) in enumerate(pairs):
            refuse_empty_side(context, continuation, position=position)
            try:
                fed.append(self._input_tokens(context, continuation, longest))
                if embedded is not None and max(fed[-1].ids) >= embedded:
                    self.check_known(max(fed[-1].ids))
            except EvaluationError as error:
                raise UnscorablePairError(str(error), position=position, hint=error.hint) from error
        return fed

    def _input_tokens(
        self, context: Sequence[int], continuation: Sequence[int], longest: int
    ) -> InputTokens:
        if len(continuation) > longest:
            raise EvaluationError(
                f"a continuation of {len(continuation)} tokens does not fit the model's context "
                f"of {longest}",
                hint="raise max_length in model_args if the model allows it",
            )
        return InputTokens.of_pair(context, continuation, longest)


def _without_scores(piece: InputTokens) -> ScoredTokens:
    return ScoredTokens(fed=piece, logprobs=np.zeros(piece.n_scored), is_greedy=False)
