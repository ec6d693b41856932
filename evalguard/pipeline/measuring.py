"""Measuring: which way the models of a comparison are scored, so that their distributions meet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from evalguard.conversion import plan
from evalguard.errors import EvaluationError, UsageError
from evalguard.models.loading import HF_TYPES
from evalguard.pipeline.by_reference import ByReference
from evalguard.pipeline.divergences import GENERATES, Divergences
from evalguard.pipeline.evaluate import Evaluation, Evaluator
from evalguard.pipeline.interruption import interruptible
from evalguard.pipeline.kept_blocks import KeptBlocks
from evalguard.pipeline.kept_distributions import FROM_CACHE, Way, cheapest_way
from evalguard.pipeline.lazy_scorer import runs_here
from evalguard.pipeline.loaded import beside
from evalguard.pipeline.lockstep import Lockstep
from evalguard.pipeline.sessions import Session, Sessions
from evalguard.pipeline.sources import ModelSource
from evalguard.scorer import Compared
from evalguard.store import DivergenceCache

_BY_REFERENCE = "--distributions reference measures them, one model at a time"
_SCORES_ONLY = "--distributions off compares the scores alone"


@dataclass(frozen=True, slots=True)
class Hindrance:
    """Why two models cannot be scored in lock-step; ``apart``: whether a reference would do."""

    reason: str
    apart: bool = False

    def __str__(self) -> str:
        return f"{self.reason}; {_BY_REFERENCE}" if self.apart else self.reason


@dataclass(frozen=True, slots=True)
class Measuring:
    """Scores all models of a run, and compares the distributions of two where that can be done.

    ``base_again``: run the base for its distributions even where its scores are kept.
    """

    sessions: Sessions
    base_again: bool = False

    def evaluate(self, sources: Sequence[ModelSource]) -> list[Evaluation]:
        """Score each model on all tasks.

        Raises:
            UsageError: for a way of comparing distributions that these models do not allow.
            EvaluationError, Interrupted: as loading and scoring do.
        """
        mode = self.sessions.choices.distributions.mode
        if len(sources) != 2 or mode == "off":
            return self._each(sources)
        base, candidate = sources
        if mode == "reference":
            return self._one_by_one(base, candidate)
        hindrance = self._apart(sources)
        if hindrance is None:
            return self._side_by_side(base, candidate)
        if self._instead(hindrance):
            return self._by_reference_instead(hindrance, base, candidate)
        note = self._not_measured(hindrance)
        return [_noted(evaluation, (note,)) for evaluation in self._each(sources)]

    @property
    def _evaluator(self) -> Evaluator:
        return self.sessions.evaluator

    @property
    def _needed(self) -> bool:
        """Whether the verdict depends on distributions."""
        return self.sessions.choices.gate.needs_distributions

    def _each(self, sources: Sequence[ModelSource]) -> list[Evaluation]:
        """Score every model by itself, one after the other unless all are to be loaded."""
        if self.sessions.choices.memory == "lockstep":
            with self.sessions.together(sources) as sessions:
                return [self._scores(session) for session in sessions]
        return [self._alone(source) for source in sources]

    def _alone(self, source: ModelSource) -> Evaluation:
        with self.sessions.opened(source) as session:
            return self._scores(session)

    def _side_by_side(self, base: ModelSource, candidate: ModelSource) -> list[Evaluation]:
        with self.sessions.opened(base) as first:
            hindrance = _not_here(first) or self._no_room(first, candidate)
            if hindrance is None:
                with self.sessions.opened(candidate) as second:
                    return self._both_open(first, second)
            instead = self._instead(hindrance)
            note = "" if instead else self._not_measured(hindrance)
            ours = None if instead else self._scores(first)
        if ours is None:
            return self._by_reference_instead(hindrance, base, candidate)
        return [_noted(ours, (note,)), _noted(self._alone(candidate), (note,))]

    def _both_open(self, first: Session, second: Session) -> list[Evaluation]:
        hindrance = _not_here(second) or _other_vocabulary(first, second)
        if hindrance is not None:
            note = self._not_measured(hindrance)
            return [_noted(self._scores(session), (note,)) for session in (first, second)]
        lockstep = Lockstep(
            base=(first.name, first.scorer),
            candidate=(second.name, second.scorer),
            evaluator=self._evaluator,
            divergences_kept=self._kept_divergences(),
            seed=self.sessions.choices.policy.seed,
        )
        by_reference = ByReference(self.sessions, self._kept_divergences())
        way: Way = "lockstep"
        if self.sessions.choices.distributions.mode == "auto":
            with interruptible("looking into the cache"):
                references = by_reference.references(first)
                way = cheapest_way(
                    lockstep,
                    references,
                    needed=self._needed or self.base_again,
                    base_recurs=self.sessions.choices.distributions.base_recurs,
                )
        if way == "scores":
            both = (self._scores(first), self._scores(second))
            return [_noted(evaluation, (FROM_CACHE,)) for evaluation in both]
        if way == "reference":
            return self._measured(*by_reference.evaluate_open(first, second))
        with _memory_hint():
            found = self._evaluator.evaluate_with(lockstep)
        return self._measured(found, lockstep.divergences)

    def _instead(self, hindrance: Hindrance) -> bool:
        """Whether a reference takes the place of lock-step: where a limit needs numbers.

        Of a base that is met again there is one anyway.
        """
        distributions = self.sessions.choices.distributions
        wanted = self._needed or distributions.base_recurs
        return distributions.mode == "auto" and hindrance.apart and wanted

    def _by_reference_instead(
        self, hindrance: Hindrance, base: ModelSource, candidate: ModelSource
    ) -> list[Evaluation]:
        note = f"distributions are compared by reference: {hindrance.reason}"
        return [_noted(found, (note,)) for found in self._one_by_one(base, candidate)]

    def _one_by_one(self, base: ModelSource, candidate: ModelSource) -> list[Evaluation]:
        by_reference = ByReference(self.sessions, self._kept_divergences())
        return self._measured(*by_reference.evaluate(base, candidate))

    def _scores(self, session: Session) -> Evaluation:
        return self._evaluator.evaluate(session.name, session.scorer)

    def _measured(self, found: Sequence[Evaluation], of: Divergences) -> list[Evaluation]:
        """Give the candidate what was measured, and say which tasks have no positions."""
        base, candidate = found
        divergences = of.of(self._evaluator.tasks.names)
        notes = tuple(
            f"distributions of {task} are not compared: {one.reason}"
            for task, one in divergences.items()
            if one.reason == GENERATES
        )
        return [_noted(base, notes), replace(_noted(candidate, notes), divergences=divergences)]

    def _kept_divergences(self) -> KeptBlocks[Compared]:
        place = self.sessions.bench.cache_dir / "divergences"
        cache = DivergenceCache(place) if self._evaluator.cache is not None else None
        return KeptBlocks(cache, self._evaluator.note)

    def _not_measured(self, hindrance: Hindrance) -> str:
        """The note that distributions are not compared.

        Raises:
            UsageError: if the user asked for it.
        """
        if self.sessions.choices.distributions.mode != "auto":
            raise UsageError(
                f"distributions cannot be compared side by side: {hindrance}", hint=_SCORES_ONLY
            )
        return f"distributions are not compared: {hindrance}"

    def _apart(self, sources: Sequence[ModelSource]) -> Hindrance | None:
        """Why two models cannot both be loaded into this process; None if they can."""
        if self.sessions.choices.policy.scorer == "harness":
            return Hindrance("lm-eval's own path (--scorer harness) shows none")
        for source in sources:
            if source.variant.model not in HF_TYPES:
                return _no_rows(source.name, source.variant.model)
        if self.sessions.bench.options.worker == "always":
            return Hindrance("models run in worker processes", apart=True)
        for source in sources:
            if plan(source.variant).needs_worker:
                return Hindrance(f"{source.name} runs in a worker process", apart=True)
        if self.sessions.choices.memory == "sequential":
            return Hindrance("--memory sequential loads one model at a time", apart=True)
        return None

    def _no_room(self, first: Session, candidate: ModelSource) -> Hindrance | None:
        """Why a second model does not fit beside the first one; None if it does, or has to."""
        if self.sessions.choices.distributions.mode == "lockstep":
            return None
        if beside(self.sessions, first, candidate):
            return None
        device = first.scorer.describe().device
        return Hindrance(f"{candidate.name} does not fit on {device} beside {first.name}", True)


@contextmanager
def _memory_hint() -> Iterator[None]:
    """Where memory runs out with two models loaded, say how to load one at a time."""
    try:
        yield
    except EvaluationError as error:
        if "memory" in str(error).lower():
            alone = "--distributions reference (or off) loads one model at a time"
            error.hint = "; ".join(filter(None, (error.hint, alone)))
        raise


def _not_here(session: Session) -> Hindrance | None:
    """Why a model's distributions cannot be had in this process; None if they can."""
    told = session.scorer.describe()
    if not told.gives_rows:
        return _no_rows(session.name, told.model_type)
    if runs_here(session.scorer):
        return None
    return Hindrance(f"{session.name} does not run in this process", apart=True)


def _no_rows(name: str, model_type: str) -> Hindrance:
    return Hindrance(f"{name}, of type {model_type}, shows none; causal models of type hf do")


def _other_vocabulary(first: Session, second: Session) -> Hindrance | None:
    base, candidate = first.scorer.describe(), second.scorer.describe()
    if base.vocabulary_digest == candidate.vocabulary_digest:
        return None
    return Hindrance("the vocabularies of base and candidate differ")


def _noted(evaluation: Evaluation, notes: Sequence[str]) -> Evaluation:
    return replace(evaluation, notes=(*evaluation.notes, *notes))
