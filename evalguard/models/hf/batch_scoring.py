"""One forward pass after another: log-probabilities where a batch is read, and what they say."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, partial
from itertools import accumulate, takewhile
from typing import Any

import torch
import torch.nn.functional as F

from evalguard.core.scorer import ScoringPath
from evalguard.errors import FallbackError
from evalguard.models.hf.guarded_generation import GuardedGeneration
from evalguard.models.hf.logits_check import (
    build_scored_rows,
    check_longest_piece,
    fall_back_to_full_logits,
)
from evalguard.models.hf.moved_batch import DeviceBatch
from evalguard.models.hf.out_of_memory import detect_batch_too_large
from evalguard.models.hf.packed_batch import PackedBatch, PieceRead
from evalguard.models.hf.prefix_sharing import PrefixSharing
from evalguard.models.hf.scored_rows import ScoredRows
from evalguard.models.hf.scored_tokens import InputTokens, ScoredTokens
from evalguard.models.hf.target_logprobs import pick_target_logprobs, split_by_piece
from evalguard.models.hf.tree_batch import TreeBatch


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
                told, flags = pick_target_logprobs(rows, targets)
                logprobs.append(told)
                greedy.append(flags)
        return split_by_piece(reads, torch.cat(logprobs), torch.cat(greedy)) if reads else []

    def groups(self, batches: Iterable[PackedBatch]) -> Iterator[list[PackedBatch]]:
        """Put batches together, in order, that have their logits made at once."""
        self.settle()
        most = self._rows.together if self._rows else 0
        group: list[PackedBatch] = []
        for batch in batches:
            if group and sum(one.n_read for one in (*group, batch)) > most:
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
            rows, told, greedy = (
                torch.cat(parts) if len(parts) > 1 else parts[0]
                for parts in zip(*waiting, strict=True)
            )
            n, done = sum(lengths), reads[: len(lengths)]
            reads, waiting = reads[len(lengths) :], [(rows[n:], told[n:], greedy[n:])]
            found = split_by_piece(done, told[:n], greedy[:n])
            yield list(zip(found, rows[:n].split(lengths), strict=True))

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
        for read, _ in takewhile(lambda one: one[1] <= positions, zip(reads, ends, strict=True))
    ]
