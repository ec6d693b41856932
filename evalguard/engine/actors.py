"""Where workers run: on this machine or on a cluster's, and blocks that actors score side by side.

What actors have scored lies in the score cache: the comparison finds it there, as what an earlier
run has left, and goes its usual way. So nothing but loading and scoring knows of a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from evalguard.config.options import CompareOptions
from evalguard.core.question import Loads, Untestable
from evalguard.core.ray_plan import RayPlan
from evalguard.core.scorer import ModelDescription, Scorer, ScoringPolicy
from evalguard.core.settings import digest_of
from evalguard.engine.batches import check_batches, policy_for_ends
from evalguard.engine.choices import Choices
from evalguard.engine.evaluate import Evaluator, served_scorer
from evalguard.engine.interrupts import BLOCKS_CACHED, interruptible
from evalguard.engine.kept_blocks import LoadedModel
from evalguard.engine.loading.lazy_scorer import is_loaded
from evalguard.engine.reused_model import ReusedModel
from evalguard.engine.sources import ModelSource
from evalguard.engine.work import FailedWork, ReferencesGoneError, Unit, Work
from evalguard.engine.worker_pool import WorkerPool
from evalguard.engine.worker_slot import SwitchableModel
from evalguard.errors import EvaluationError, UsageError
from evalguard.worker.ray_cluster import check_ray, open_cluster


def with_execution(options: CompareOptions, choices: Choices) -> CompareOptions:
    """The options with the place where models run, as it was settled.

    Raises:
        UsageError: models are to run on a cluster, and Ray is missing or too old, or there is no
            cache to bring scores together in.
    """
    if not choices.execution:
        return replace(options, execution="")
    check_ray()
    if not options.use_cache:
        raise UsageError(
            "--no-cache: actors bring their scores together in the score cache",
            hint="--cache-dir FOLDER with an empty folder scores everything anew",
        )
    return replace(options, execution=choices.execution, worker="always")


class ActorScoring:
    """Scores a model's blocks by all actors of a cluster, before the comparison asks for them.

    One actor is that of the model that is open; the others stay from model to model.

    Args:
        options: with the cluster that is meant.
        cache_dir: of builds, digests and logs.
    """

    def __init__(self, options: CompareOptions, cache_dir: Path) -> None:
        self._options = options
        self._cache_dir = cache_dir
        self._sources: list[tuple[Scorer, ModelSource]] = []
        self._pool: WorkerPool | None = None
        self._first = _FirstModel(self._open_one)

    @property
    def places(self) -> int:
        """How many actors there are to be; the cluster is connected for that."""
        return open_cluster(RayPlan.parse(self._options.execution)).actors

    def register(self, scorer: Scorer, source: ModelSource) -> None:
        """Remember what a model was opened from, and with which policy (``source.policy``)."""
        self._sources.append((scorer, source))

    def score(self, evaluator: Evaluator, model: LoadedModel, units: Sequence[Unit]) -> None:
        """Have actors answer units of a model, of which not all is kept, and keep the answers.

        Raises:
            EvaluationError: the model cannot be loaded or asked; or an actor's machine gives it
                another identity than the one where it was loaded first.
            Interrupted: on Ctrl-C; finished blocks are kept.
        """
        source = next((one for scorer, one in self._sources if scorer is model.scorer), None)
        key = evaluator.store.key(model.scorer)
        if source is None or served_scorer(model.scorer) is not None:
            return  # a server is asked from here, whoever shares its work out
        if key is None:
            if evaluator.kept is not None:
                evaluator.note(f"{model.name} is scored by one actor: its scores cannot be kept")
            return
        if len(units) < 2:
            return
        with interruptible(f"scoring {model.name}", hint=BLOCKS_CACHED):
            self._score(evaluator, model, source, units, key)

    def close(self) -> None:
        """End the actors. May be called twice."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def _score(
        self,
        evaluator: Evaluator,
        model: LoadedModel,
        source: ModelSource,
        units: Sequence[Unit],
        key: str,
    ) -> None:
        assert source.policy is not None
        ends = [model.scorer.describe()]
        policy = policy_for_ends(source.policy, ends, source.variant.model)
        work = Work(source=replace(source, policy=policy), units=tuple(units))
        pool = self._pool = self._pool or self._open_pool(evaluator)
        evaluator.progress.note(f"{model.name}: {len(units):,} blocks on {pool.jobs} Ray actors")
        tasks = ", ".join(dict.fromkeys(unit.block.requests[0].task for unit in units))
        documents = sum(len(unit.block.doc_ids) for unit in units)
        evaluator.progress.start(model.name, tasks, documents)
        self._first.start(model.scorer if is_loaded(model.scorer) else None)
        try:
            with evaluator.meter.ahead(model.name), closing(pool.run([work])) as events:
                for event in events:
                    if isinstance(event, FailedWork):
                        if isinstance(event.error, ReferencesGoneError):
                            return  # the comparison finds the same, and measures without them
                        raise event.error
                    _check_alike(model.name, event.description, policy, key)
                    evaluator.store.keep(event.answer, key)
                    block = event.answer.unit.block
                    evaluator.count_ahead(block, model.name, event.answer.responses)
        except BaseException:
            self.close()
            raise
        finally:
            evaluator.progress.stop()
            self._first.close()

    def _open_pool(self, evaluator: Evaluator) -> WorkerPool:
        first: list[SwitchableModel] = [self._first]
        return WorkerPool(
            lambda: first.pop() if first else self._open_one(),
            jobs=self.places,
            watch=self._options.timeout is None,
            recovers=True,
            say=evaluator.progress.note,
        )

    def _open_one(self) -> ReusedModel:
        # Every work has a policy of its own.
        return ReusedModel(ScoringPolicy(), self._options, self._cache_dir)


class _FirstModel:
    """The actor that has a model loaded already, or, where there is none, one more like any other.

    Whoever loaded the model closes it. Between two models this one has no actor: the next one may
    have to be loaded where it was.
    """

    def __init__(self, open_one: Callable[[], SwitchableModel]) -> None:
        self._open_one = open_one
        self._scorer: Scorer | None = None
        self._other: SwitchableModel | None = None

    @property
    def loads(self) -> Loads:
        """How often another actor became a model."""
        return Loads() if self._other is None else self._other.loads

    def start(self, scorer: Scorer | None) -> None:
        """Begin a model's blocks; None: it is not loaded."""
        self._scorer = scorer

    def at(self, source: ModelSource) -> Scorer:
        """Be this model."""
        if self._scorer is not None:
            return self._scorer
        if self._other is None:
            self._other = self._open_one()
        return self._other.at(source)

    def close(self) -> None:
        """Use the loaded one no more, and end what was started in its place."""
        self._scorer = None
        if self._other is not None:
            self._other.close()


def _check_alike(name: str, found: ModelDescription, policy: ScoringPolicy, key: str) -> None:
    """Refuse scores of other batches, another device, library or file than the model has."""
    try:
        check_batches(policy, found)
    except Untestable as refusal:
        raise EvaluationError(f"{name} on an actor: {refusal}", hint=refusal.hint) from refusal
    if found.identity is None or digest_of(dict(found.identity)) != key:
        raise EvaluationError(
            f"an actor's {name} is not the model that was loaded first: the machines of the "
            "cluster differ in hardware, packages, files or threads",
            hint="run on machines of one kind, with the same packages and the same model files",
        )
