"""Measuring: which way the models of a comparison are scored, so that their distributions meet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from evalguard.conversion import plan
from evalguard.errors import EvaluationError, UsageError
from evalguard.models.lm_scorer import LMScorer
from evalguard.models.loading import HF_TYPES
from evalguard.pipeline.by_reference import ByReference
from evalguard.pipeline.divergences import GENERATES, Divergences
from evalguard.pipeline.evaluate import Evaluation, Evaluator
from evalguard.pipeline.kept_blocks import KeptBlocks
from evalguard.pipeline.loaded import room_beside
from evalguard.pipeline.lockstep import Lockstep
from evalguard.pipeline.sessions import Session, Sessions
from evalguard.pipeline.sources import ModelSource
from evalguard.scorer import Compared
from evalguard.store import DivergenceCache

_BY_REFERENCE = "--distributions reference measures them, one model at a time"
_SCORES_ONLY = "--distributions off compares the scores alone"


@dataclass(frozen=True, slots=True)
class Measuring:
    """Scores all models of a run, and compares the distributions of two where that can be done."""

    sessions: Sessions

    def evaluate(self, sources: Sequence[ModelSource]) -> list[Evaluation]:
        """Score each model on all tasks.

        Raises:
            UsageError: for a way of comparing distributions that these models do not allow.
            EvaluationError, Interrupted: as loading and scoring do.
        """
        mode = self.sessions.choices.distributions.mode
        if len(sources) != 2 or mode == "off":
            return [self._alone(source) for source in sources]
        base, candidate = sources
        if mode == "reference":
            return self._one_by_one(base, candidate)
        hindrance = self._apart(sources)
        if hindrance:
            return self._without(sources, hindrance)
        return self._side_by_side(base, candidate)

    @property
    def _evaluator(self) -> Evaluator:
        return self.sessions.evaluator

    def _alone(self, source: ModelSource) -> Evaluation:
        with self.sessions.opened(source) as session:
            return self._evaluator.evaluate(session.name, session.scorer)

    def _without(self, sources: Sequence[ModelSource], hindrance: str) -> list[Evaluation]:
        """Score one model after the other, and say why their distributions are not compared."""
        note = self._not_measured(hindrance)
        return [_noted(self._alone(source), (note,)) for source in sources]

    def _side_by_side(self, base: ModelSource, candidate: ModelSource) -> list[Evaluation]:
        with self.sessions.opened(base) as first:
            hindrance = _not_here(first) or self._no_room(first, candidate)
            if hindrance:
                note = self._not_measured(hindrance)
                ours = self._scores(first)
            else:
                with self.sessions.opened(candidate) as second:
                    return self._both_loaded(first, second)
        return [_noted(ours, (note,)), _noted(self._alone(candidate), (note,))]

    def _both_loaded(self, first: Session, second: Session) -> list[Evaluation]:
        hindrance = _not_here(second) or _other_vocabulary(first, second)
        if hindrance:
            note = self._not_measured(hindrance)
            return [_noted(self._scores(session), (note,)) for session in (first, second)]
        base, candidate = first.scorer, second.scorer
        assert isinstance(base, LMScorer)
        assert isinstance(candidate, LMScorer)
        lockstep = Lockstep(
            base=(first.name, base),
            candidate=(second.name, candidate),
            evaluator=self._evaluator,
            divergences_kept=self._kept_divergences(),
            seed=self.sessions.choices.policy.seed,
        )
        with _memory_hint():
            found = self._evaluator.evaluate_with(lockstep)
        return self._measured(found, lockstep.divergences)

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

    def _not_measured(self, hindrance: str) -> str:
        """The note that distributions are not compared.

        Raises:
            UsageError: if the user asked for it.
        """
        if self.sessions.choices.distributions.mode != "auto":
            raise UsageError(
                f"distributions cannot be compared side by side: {hindrance}", hint=_SCORES_ONLY
            )
        return f"distributions are not compared: {hindrance}"

    def _apart(self, sources: Sequence[ModelSource]) -> str:
        """Why two models cannot be loaded into this process; "" if they can."""
        for source in sources:
            if source.variant.model not in HF_TYPES:
                return _no_rows(source.name, source.variant.model)
        workers = [source for source in sources if plan(source.variant).needs_worker]
        if self.sessions.bench.options.worker == "always":
            return f"models run in worker processes; {_BY_REFERENCE}"
        return f"{workers[0].name} runs in a worker process; {_BY_REFERENCE}" if workers else ""

    def _no_room(self, first: Session, candidate: ModelSource) -> str:
        """Why a second model does not fit beside the first one; "" if it does, or has to."""
        if self.sessions.choices.distributions.mode == "lockstep":
            return ""
        if room_beside(first, candidate):
            return ""
        device = first.scorer.describe().device
        return f"{candidate.name} does not fit on {device} beside {first.name}; {_BY_REFERENCE}"


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


def _shows_none(session: Session) -> str:
    told = session.scorer.describe()
    return "" if told.gives_rows else _no_rows(session.name, told.model_type)


def _not_here(session: Session) -> str:
    """Why a model's distributions cannot be had in this process; "" if they can."""
    shown = _shows_none(session)
    if shown or isinstance(session.scorer, LMScorer):
        return shown
    return f"{session.name} does not run in this process; {_BY_REFERENCE}"


def _no_rows(name: str, model_type: str) -> str:
    return f"{name}, of type {model_type}, shows none; causal models of type hf do"


def _other_vocabulary(first: Session, second: Session) -> str:
    base, candidate = first.scorer.describe(), second.scorer.describe()
    if base.vocabulary_digest == candidate.vocabulary_digest:
        return ""
    return "the vocabularies of base and candidate differ"


def _noted(evaluation: Evaluation, notes: Sequence[str]) -> Evaluation:
    return replace(evaluation, notes=(*evaluation.notes, *notes))
