"""Bench: what all models of one run share; tasks, score cache, progress, and how one is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from evalguard.conversion.build_use import this_run
from evalguard.errors import FallbackError
from evalguard.harness import load_tasks
from evalguard.models.encoded_texts import forget_texts
from evalguard.pipeline.cache_limit import keep_to
from evalguard.pipeline.choices import Choices
from evalguard.pipeline.evaluate import Evaluator
from evalguard.pipeline.fallback import check_alike
from evalguard.pipeline.interruption import interruptible
from evalguard.pipeline.known_model import KnownModel, KnownModels
from evalguard.pipeline.lazy_scorer import LazyScorer
from evalguard.pipeline.meter import Meter
from evalguard.pipeline.open_scorer import Opener, needs_worker, open_scorer
from evalguard.pipeline.options import CompareOptions
from evalguard.pipeline.places import placed
from evalguard.pipeline.sources import ModelSource
from evalguard.pipeline.task_scoring import TaskScoring
from evalguard.report.progress import Progress
from evalguard.scorer import Scorer, ScoringPolicy
from evalguard.store import ScoreCache, open_cache_dir


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where models are loaded and scored, one after the other, on the same tasks.

    ``known`` is what is remembered of models; None: every model is loaded.
    """

    evaluator: Evaluator
    choices: Choices
    options: CompareOptions
    cache_dir: Path
    opener: Opener
    known: KnownModels | None = None
    _opened: list[Scorer] = field(default_factory=list)

    def load(self, source: ModelSource) -> Scorer:
        """Load a model, or put that off where all about it is known; the caller closes it.

        Raises:
            EvalguardError: as loading does, with the place in the guard file where that is known.
            FallbackError: it cannot be scored as the models before it, or as is asked, which an
                earlier run has found.
        """
        policy = self.settled(source.policy or self.choices.policy)
        known = self._known(source, policy)
        if known is not None and known.gave_up is not None:
            raise known.gave_up
        scorer = self._open(source, policy) if known is None else self._lazy(source, policy, known)
        try:
            check_alike(source.name, scorer.describe(), [one.describe() for one in self._opened])
        except FallbackError:
            scorer.close()
            raise
        self.follow(scorer)
        return scorer

    def load_apart(self, source: ModelSource) -> Scorer:
        """Load a model that need not be scored as the others; the caller closes it.

        Raises:
            EvalguardError: as loading does.
        """
        return self._open(source, source.policy or self.choices.policy)

    def _open(self, source: ModelSource, policy: ScoringPolicy) -> Scorer:
        self.evaluator.progress.note(f"loading {source.name}")
        loading = self.evaluator.meter.phase("loading", (source.name,))
        with interruptible(f"loading {source.name}"), placed(source), loading:
            scorer = self.opener(source.variant, policy, self.options, cache_dir=self.cache_dir)
        self.evaluator.meter.loaded(scorer)
        return scorer

    def _known(self, source: ModelSource, policy: ScoringPolicy) -> KnownModel | None:
        if self.known is None:
            return None
        if source.variant.build is not None:
            self.evaluator.progress.note(f"building {source.name}, unless that is done")
        with interruptible(f"reading the files of {source.name}"), placed(source):
            worker = needs_worker(source.variant, self.options)
            return self.known.of(source.variant, policy, worker=worker)

    def _lazy(self, source: ModelSource, policy: ScoringPolicy, known: KnownModel) -> Scorer:
        here = not needs_worker(source.variant, self.options)
        told = known.description
        budget = told.computation.get("token_budget") if told is not None else None
        # Smaller than what is asked for where memory ran out: it would again.
        same = replace(policy, token_budget=budget) if isinstance(budget, int) else policy
        scorer = LazyScorer(source.name, known, lambda: self._open(source, same), here=here)
        for problem in known.facts.problems:
            self.evaluator.progress.note(problem)
        known.facts.problems.clear()
        return scorer

    def follow(self, scorer: Scorer) -> None:
        """Let every model that is loaded from now on have this one's batches."""
        self._opened.append(scorer)

    def settled(self, policy: ScoringPolicy) -> ScoringPolicy:
        """A policy with the batches that the models before have, so that all have equal ones."""
        before = [scorer.describe().computation for scorer in self._opened]
        if not all(one.get("shares_prefixes") for one in before):
            policy = replace(policy, share_prefixes=False)
        if policy.token_budget:
            return policy
        budgets = [one.get("token_budget") for one in before]
        found = [budget for budget in budgets if isinstance(budget, int)]
        return replace(policy, token_budget=min(found, default=0))


@contextmanager
def bench(
    choices: Choices,
    options: CompareOptions,
    *,
    opener: Opener | None = None,
    meter: Meter | None = None,
) -> Iterator[Bench]:
    """Load the tasks, and open score cache and progress for a run.

    Args:
        opener: loads a model in place of ``open_scorer``.
        meter: counts what this takes.

    Raises:
        UsageError, EvaluationError, Interrupted: as loading tasks does.
    """
    cache_dir = open_cache_dir(options.cache_dir)
    this_run()  # worker processes that are started from here on belong to it
    # Before tasks and models bring in libraries, which set variables of their own. Who gives an
    # opener wants to see every model loaded.
    known = KnownModels.kept_in(cache_dir) if options.use_cache and opener is None else None
    with Progress(quiet=options.quiet) as progress, ExitStack() as stack:
        stack.callback(forget_texts)
        if known is not None:
            stack.callback(known.left)
        names = ", ".join(choices.tasks)
        progress.note(f"loading tasks: {names}")
        with interruptible(f"loading tasks ({names})"):
            tasks = load_tasks(choices.tasks, options=choices.task_options)
        meter = meter or Meter()
        meter.start_over()
        evaluator = Evaluator(
            tasks=tasks,
            cache=ScoreCache(cache_dir / "scores") if options.use_cache else None,
            progress=progress,
            chat=bool(choices.task_options.apply_chat_template),
            meter=meter,
            scoring=TaskScoring(documents=options.verify_scorer, seed=choices.task_options.seed),
        )
        yield Bench(
            evaluator=evaluator,
            choices=choices,
            options=options,
            cache_dir=cache_dir,
            opener=opener or open_scorer,
            known=known,
        )
        if options.use_cache:
            keep_to(choices.cache_max_size, cache_dir, progress.note, since=meter.began())
