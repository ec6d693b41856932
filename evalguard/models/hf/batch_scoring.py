"""One forward pass after another: log-probabilities where a batch is read, and what they say."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, partial
from itertools import accumulate, takewhile
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from evalguard.core.scorer import ScoringPath
from evalguard.errors import EvaluationError, FallbackError
from evalguard.models.failures import OUT_OF_MEMORY, BatchTooLargeError, retry_with_smaller_batches
from evalguard.models.hf.batches import (
    DeviceBatch,
    PackedBatch,
    PieceRead,
    cut_by_number,
    cut_by_tokens,
    pad_batch,
)
from evalguard.models.hf.generation import GuardedGeneration
from evalguard.models.hf.longrope import longrope_switch_length
from evalguard.models.hf.out_of_memory import detect_batch_too_large
from evalguard.models.hf.prefix_sharing import PrefixSharing, plan_sharing
from evalguard.models.hf.prefix_tree import TreeBatch
from evalguard.models.hf.scored_rows import (
    ScoredRows,
    build_scored_rows,
    check_longest_piece,
    fall_back_to_full_logits,
)
from evalguard.models.scored_tokens import (
    InputTokens,
    ScoredTokens,
    UnscorablePairError,
    refuse_empty_side,
)

_NUMPY_DTYPES = (torch.float32, torch.float64)


def pick_target_logprobs(
    rows: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the targets' log-probabilities, and whether each target is the most probable token.

    Of equally probable tokens the first counts as the most probable, as in lm-eval. Nothing waits
    for a GPU.

    Args:
        rows: log-probabilities, shape (n, vocabulary).
        targets: token ids, shape (n,), on the same device.
    """
    logprobs = rows.gather(1, targets.unsqueeze(1)).squeeze(1)
    if rows.device.type == "cpu" and rows.dtype in _NUMPY_DTYPES:
        # torch takes ten times as long for the place of a maximum on a CPU
        best = torch.from_numpy(rows.numpy().argmax(axis=1))
    else:
        best = rows.argmax(dim=-1)
    return logprobs, best == targets


def split_by_piece(
    reads: Sequence[PieceRead], told: torch.Tensor, greedy: torch.Tensor
) -> list[ScoredTokens]:
    """Cut the answers of many pieces apart; ``told`` and ``greedy`` have shape (N,)."""
    logprobs, flags = told.double().cpu().numpy(), greedy.tolist()
    scores, end = [], 0
    for read in reads:
        start, end = end, end + len(read.positions)
        of_piece = slice(start, end)
        scores.append(
            ScoredTokens(
                fed=read.piece, logprobs=logprobs[of_piece], is_greedy=all(flags[of_piece])
            )
        )
    return scores


class BatchScoring(GuardedGeneration):
    """HFLM that reads a model's answers off a batch.

    The output embedding sees the positions that are read and no others, where that gives the
    model's own logits; else logits are computed at all positions, and ``rows_reason`` says why.

    Attributes:
        scorer: "full logits" has logits computed at all positions without trying.
        sharing: how prefixes that several pieces share are read once; None: they are not.
        gave_up: what real documents showed that the model cannot do; None: nothing.
    """

    scorer: ScoringPath

    rows_reason = ""
    sharing: PrefixSharing | None = None
    gave_up: FallbackError | None = None
    _rows: ScoredRows | None = None
    _settled = False

    def settle(self) -> None:
        """Try, once, whether the model can be scored at chosen positions only."""
        if not self._settled:
            if self.scorer == "fast":
                self._rows, self.rows_reason = build_scored_rows(self)
            self._settled = True

    def unsettle(self) -> None:
        """Forget what was tried: the model computes something else from now on."""
        self.forget_padding()
        self._rows, self.rows_reason, self.gave_up = None, "", None
        self._settled = False

    @property
    def only_scored_positions(self) -> bool:
        """Whether logits are computed at the scored positions only."""
        self.settle()
        return self._rows is not None

    def check_rows(self, pieces: Iterable[InputTokens]) -> None:
        """Hold the longest piece's logits against those at all positions, if none as long was.

        Raises:
            FallbackError: they differ by more than rounding.
        """
        self.settle()
        if self._rows is not None:
            with self.giving_up():
                check_longest_piece(self, self._rows, pieces)

    @contextmanager
    def giving_up(self) -> Iterator[None]:
        """Note, for later runs, what this model turns out to be unable to do."""
        try:
            yield
        except FallbackError as error:
            # without the traceback, whose frames hold memory
            self.gave_up = FallbackError(str(error), giving_up=error.giving_up, hint=error.hint)
            raise

    def score_batches(self, batches: Iterator[PackedBatch]) -> list[ScoredTokens]:
        """Score batches; nothing waits for a GPU before the last one is on its way."""
        reads: list[PieceRead] = []
        logprobs, greedy = [], []
        for group in self.groups(batches):
            reads += [read for batch in group for read in batch.reads]
            for rows, targets in self._blocks(group):
                chosen, flags = pick_target_logprobs(rows, targets)
                logprobs.append(chosen)
                greedy.append(flags)
        return split_by_piece(reads, torch.cat(logprobs), torch.cat(greedy)) if reads else []

    def groups(self, batches: Iterable[PackedBatch]) -> Iterator[list[PackedBatch]]:
        """Put batches together, in order, that have their logits made at once."""
        self.settle()
        most = self._rows.together if self._rows else 0
        group: list[PackedBatch] = []
        for batch in batches:
            if group and sum(member.n_read for member in (*group, batch)) > most:
                yield group
                group = []
            group.append(batch)
        if group:
            yield group

    def scored_batch(self, batch: PackedBatch) -> Iterator[tuple[ScoredTokens, torch.Tensor]]:
        """Run one batch; yield each piece's answer and its rows.

        Rows are natural log-probabilities of all tokens at the scored positions, in the dtype of
        the softmax, shape (n_scored, vocabulary), on the model's device; each is made when it is
        asked for.
        """
        for part in self.scored_parts([batch]):
            yield from part

    def scored_parts(
        self, group: Sequence[PackedBatch]
    ) -> Iterator[list[tuple[ScoredTokens, torch.Tensor]]]:
        """Run one of ``groups`` as ``scored_batch``; yield what is finished, many at a time."""
        reads, waiting = [read for batch in group for read in batch.reads], []
        for rows, targets in self._blocks(group):
            waiting.append((rows, *pick_target_logprobs(rows, targets)))
            lengths = _lengths_read_by(reads, sum(part[0].shape[0] for part in waiting))
            if not lengths:
                continue
            rows, logprobs, greedy = (
                torch.cat(parts) if len(parts) > 1 else parts[0]
                for parts in zip(*waiting, strict=True)
            )
            n, done = sum(lengths), reads[: len(lengths)]
            reads, waiting = reads[len(lengths) :], [(rows[n:], logprobs[n:], greedy[n:])]
            scores = split_by_piece(done, logprobs[:n], greedy[:n])
            yield list(zip(scores, rows[:n].split(lengths), strict=True))

    def full_logits(self, moved: DeviceBatch) -> torch.Tensor:
        """Return the logits where a batch is read, from logits at all positions."""
        if isinstance(moved.batch, TreeBatch):
            return moved.at_places(self._run(moved, unread=self.forward))
        return moved.at_places(self._model_call(moved.input_ids))

    def _run(self, moved: DeviceBatch, *, unread: Callable[..., object]) -> torch.Tensor:
        """One forward pass; ``unread`` is one of which no logits are wanted."""
        if self.sharing is None or not isinstance(moved.batch, TreeBatch):
            return self.forward(input_ids=moved.input_ids)
        return self.sharing.run(self.forward, unread, moved.batch, self.device)

    def forward(self, *, cache: Any = None, **inputs: Any) -> torch.Tensor:
        """Return the model's logits, without what only generation or training needs.

        Args:
            cache: keys and values that are read, and added to; None: none.
        """
        if cache is not None:
            inputs |= {self._cache_name: cache, "use_cache": True}
        with torch.inference_mode(), self._precision():
            logits: torch.Tensor = self.model(**{**self._without_cache, **inputs}).logits
            return logits

    def _precision(self) -> AbstractContextManager[object]:
        """The precision that was asked for, as lm-eval has it; nothing to enter for the model's."""
        dtype, device = self.mixed_precision_dtype, self.device.type
        if dtype is None and not torch.is_autocast_enabled(device):
            return nullcontext()
        return torch.autocast(device_type=device, dtype=dtype, enabled=dtype is not None)

    def _blocks(self, group: Sequence[PackedBatch]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Run a group of batches; yield log-probabilities and targets, block by block of places."""
        *early, last = group
        held = [self._hidden(batch) for batch in early]
        with detect_batch_too_large(last):
            moved, done = DeviceBatch.of(last, self.device), 0
            wanted = torch.cat([*(targets for _, targets in held), moved.targets])
            for logits in self._logits(moved, [rows for rows, _ in held]):
                start, done = done, done + logits.shape[0]
                targets = wanted[start:done].to(logits.device)
                yield F.log_softmax(logits, dim=-1, dtype=self.softmax_dtype), targets

    def _hidden(self, batch: PackedBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows that a batch's logits can be made of, and its targets."""
        rows = self._rows
        assert rows is not None
        with detect_batch_too_large(batch), self.giving_up(), fall_back_to_full_logits():
            moved = DeviceBatch.of(batch, self.device)
            return rows.hidden(moved, lambda: self._run(moved, unread=rows.unread)), moved.targets

    def _logits(self, moved: DeviceBatch, before: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        rows = self._rows
        with self.giving_up(), fall_back_to_full_logits():
            if rows is None:
                yield self.full_logits(moved)
            else:
                run = partial(self._run, moved, unread=rows.unread)
                yield from rows.logits(moved, run, before)

    @cached_property
    def _cache_name(self) -> str:
        """What the model calls its cache: transformers has renamed it in 5.24."""
        return "cache" if "cache" in self._forward_arguments else "past_key_values"

    @cached_property
    def _without_cache(self) -> dict[str, Any]:
        """No cache of keys and values where the model can do without: it would be thrown away."""
        return {"use_cache": False} if "use_cache" in self._forward_arguments else {}

    @cached_property
    def _forward_arguments(self) -> Mapping[str, object]:
        model = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        return inspect.signature(model.forward).parameters


def _lengths_read_by(reads: Sequence[PieceRead], positions: int) -> list[int]:
    """How many positions each of the first pieces has that end within so many positions."""
    ends = accumulate(len(read.positions) for read in reads)
    return [
        len(read.positions)
        for read, _ in takewhile(lambda pair: pair[1] <= positions, zip(reads, ends, strict=True))
    ]


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
        scores = retry_with_smaller_batches([self], lambda: self.score_batches(self.batches(fed)))
        answers = {scored.fed: scored for scored in scores}
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
