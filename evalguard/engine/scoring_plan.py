"""Which way the models of a comparison are scored, so that their distributions meet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from evalguard.conversion.planning import plan_conversion
from evalguard.core.divergence import SAMPLES
from evalguard.core.findings import Finding
from evalguard.core.scorer import ModelDescription, cached_between, count_cached_tokens
from evalguard.core.settings import digest_of
from evalguard.distributions.reference_file import ReferenceWriter
from evalguard.distributions.task_distributions import GENERATION_ONLY, DivergenceTables
from evalguard.engine.answer import ScoringJob
from evalguard.engine.block_store import BaseReferences, LoadedModel, UnitAnswer
from evalguard.engine.executor import Evaluation, Executor, served_scorer
from evalguard.engine.fairness import check_vocabularies, share_vocabulary
from evalguard.engine.interrupts import interruptible
from evalguard.engine.loading.foreign_code import brings_code, has_own_process
from evalguard.engine.loading.lazy_scorer import runs_here
from evalguard.engine.loading.own_environment import shows_distributions
from evalguard.engine.memory import advise_one_at_a_time
from evalguard.engine.reference_scorer import ReferenceScorer, describe_reference
from evalguard.engine.run_context import RunContext
from evalguard.engine.sources import ModelSource, ReferenceSource
from evalguard.errors import FallbackError, StoreError, UsageError
from evalguard.harness.request_blocks import RequestBlock
from evalguard.models.arguments import REMOTE_TYPES, SERVED_TYPES
from evalguard.models.served.shown_logprobs import TOP_ARGUMENT

_REFERENCE_HINT = "--distributions reference measures them, one model at a time"
_SCORES_HINT = "--distributions off compares the scores alone"


@dataclass(frozen=True, slots=True)
class LockstepObstacle:
    """Why two models cannot be scored in lock-step.

    ``apart``: whether a reference would do. ``remedy``: what else does; ``served``: a server is
    asked.
    """

    reason: str
    apart: bool = False
    remedy: str = ""
    served: bool = False

    def __str__(self) -> str:
        return f"{self.reason}; {_REFERENCE_HINT}" if self.apart else self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedAgain:
    """What an engine said when it was asked a second time.

    ``cached_tokens``: of prompts, that it says it took from its cache then; None: it does not say.
    """

    evaluation: Evaluation
    cached_tokens: int | None


@dataclass(frozen=True, slots=True)
class ScoringPlan:
    """Scores all models of a run, and compares the distributions of two where that can be done.

    ``base_again``: hold the models against each other exactly, where both can be loaded.
    """

    context: RunContext
    base_again: bool = False

    def evaluate(self, sources: Sequence[ModelSource]) -> list[Evaluation]:
        """Score each model on all tasks.

        Raises:
            UsageError: for a way of comparing distributions that these models do not allow.
            EvaluationError, Interrupted: as loading and scoring do.
        """
        mode = self.context.choices.distributions.mode
        if len(sources) != 2 or mode == "off":
            return self._each(sources)
        base, candidate = sources
        if mode == "reference":
            return self._one_by_one(base, candidate)
        hindrance = self._apart(sources)
        if hindrance is None:
            return self._side_by_side(base, candidate)
        if hindrance.apart and mode == "auto":
            with ExitStack() as opened:
                first = opened.enter_context(self.context.open_model(base))
                return self._by_reference(hindrance, sources, first, opened.pop_all())
        self._refuse_unmeasured(hindrance)
        return self._say_unmeasured(hindrance, self._each(sources))

    def evaluate_beside(self, base: ReferenceSource, candidate: ModelSource) -> list[Evaluation]:
        """Score a candidate beside a base that a file keeps; both evaluations.

        Raises:
            UsageError: the file is damaged, or its base was scored otherwise than the candidate
                can be.
            UsageError, EvaluationError, Interrupted: as ``evaluate``.
        """
        with closing(ReferenceScorer(base, self.context.choices.policy)) as stored:
            self.context.match_batches_of(stored)
            references = BaseReferences(top_k=stored.top_k, key=stored.key, file=stored)
            job = ScoringJob(models=[LoadedModel(base.name, stored)], leaves=references)
            (ours,) = self._executor.score(job)
            try:
                with self.context.open_model(candidate) as model:
                    return self._score_candidate(model, references, ours)
            except FallbackError as error:  # it may have been hours of work, and stays
                raise UsageError(
                    f"{base.path} holds a base that was scored otherwise than this candidate can "
                    f"be: {error}",
                    hint=f"make another file, with {_PLAINER_OPTIONS[error.giving_up]}",
                ) from error

    @property
    def _executor(self) -> Executor:
        return self.context.executor

    @property
    def _needed(self) -> bool:
        """Whether the verdict depends on distributions."""
        return self.context.choices.gate.needs_distributions

    def _each(self, sources: Sequence[ModelSource]) -> list[Evaluation]:
        """Score every model by itself, one after the other unless all are to be loaded.

        Servers work at the same time: all are asked before the first is waited for.
        """
        if self.context.memory.opens_all(
            separate_servers=are_separate_servers(sources),
            on_cluster=self._executor.slots is not None,
        ):
            with self.context.open_models(sources) as models:
                for model in models:
                    self._executor.begin(ScoringJob(models=[model]))
                return [self._executor.evaluate(model) for model in models]
        self.context.open_clients(sources)
        return [self._alone(source) for source in sources]

    def evaluate_again(self, source: ModelSource) -> AskedAgain:
        """Let one running engine answer every task twice; what it said the second time.

        Of a model in this process that shows distributions, they are held against the first time's.

        Raises:
            EvaluationError, Interrupted: as ``evaluate``.
        """
        mode = self.context.choices.distributions.mode
        with ExitStack() as run:
            model = run.enter_context(self.context.open_model(source))
            references = None
            if mode != "off" and model.scorer.describe().gives_rows:
                first, references = self._score_base(model, run)
            else:
                first = self._executor.evaluate(model)
            if served_scorer(model.scorer) is not None:  # this one has its answers already
                model = run.enter_context(self.context.open_model(source))
            before = count_cached_tokens(model.scorer)
            if references is None:
                again = self._executor.evaluate(model)
            else:
                again = self._score_candidate(model, references, first)[-1]
            after = count_cached_tokens(model.scorer)
        return AskedAgain(evaluation=again, cached_tokens=cached_between(before, after))

    def _alone(self, source: ModelSource) -> Evaluation:
        with self.context.open_model(source) as model:
            return self._scores(model)

    def _scores(self, model: LoadedModel) -> Evaluation:
        self.context.check_waiting()
        return self._executor.evaluate(model)

    def _side_by_side(self, base: ModelSource, candidate: ModelSource) -> list[Evaluation]:
        with ExitStack() as opened:
            first = opened.enter_context(self.context.open_model(base))
            hindrance = _local_obstacle(first) or self._no_room(first, candidate)
            if hindrance is None:
                with self.context.open_model(candidate) as second:
                    return self._both_open(first, second)
            if hindrance.apart and self.context.choices.distributions.mode == "auto":
                both = (base, candidate)
                return self._by_reference(hindrance, both, first, opened.pop_all())
            self._refuse_unmeasured(hindrance)
            ours = self._scores(first)
        return self._say_unmeasured(hindrance, [ours, self._alone(candidate)])

    def _both_open(self, first: LoadedModel, second: LoadedModel) -> list[Evaluation]:
        hindrance = _local_obstacle(second) or _other_vocabulary(first, second)
        if hindrance is not None:
            self._refuse_unmeasured(hindrance)
            return self._say_unmeasured(
                hindrance, [self._scores(model) for model in (first, second)]
            )
        lockstep = ScoringJob(models=[first, second], seed=self.context.choices.policy.seed)
        if self._leaves_reference(lockstep):
            with ExitStack() as run:
                ours, references = self._score_base(first, run)
                return self._score_candidate(second, references, ours)
        with advise_one_at_a_time():
            evaluations = self._executor.score(lockstep)
        return self._measured(evaluations, lockstep.divergences)

    def _by_reference(
        self,
        hindrance: LockstepObstacle,
        sources: Sequence[ModelSource],
        first: LoadedModel,
        opened: ExitStack,
    ) -> list[Evaluation]:
        """Compare by reference, as far as both models show distributions.

        Args:
            first: the base, open in ``opened``, which is closed before the candidate is loaded.
        """
        base, candidate = sources
        with ExitStack() as run:
            with opened:
                before = first.scorer.describe()
                references = None
                if before.gives_rows:
                    ours, references = self._score_base(first, run)
                else:
                    ours = self._scores(first)
            with self.context.open_model(candidate) as second:
                after = second.scorer.describe()
                unlike = _no_rows(base, before) or _no_rows(candidate, after)
                unlike = unlike or _unlike_vocabularies(before, after)
                if references is not None and unlike is None:
                    note = f"distributions are compared by reference: {hindrance.reason}"
                    both = self._score_candidate(second, references, ours)
                    return [_with_notes(evaluation, (note,)) for evaluation in both]
                theirs = self._scores(second)
        assert unlike is not None  # a base without references shows no rows
        self._refuse_unmeasured(unlike)
        return self._say_unmeasured(unlike, [ours, theirs])

    def _leaves_reference(self, lockstep: ScoringJob) -> bool:
        """Whether the base of two open models is to leave a reference, or has left one.

        So it is where more candidates follow, and where its scores are all kept: it comes for a
        second time. Where all is kept that lock-step measures, neither model is run.
        """
        choices = self.context.choices.distributions
        if choices.mode != "auto" or self._needed or self.base_again:
            return False
        with interruptible("looking into the cache"):
            store, base = self._executor.store, lockstep.models[0]
            pairs = list(_block_pairs(self._executor, lockstep))
            if not all(store.entry(ours, base).is_there for ours, _ in pairs):
                return choices.base_recurs
            if all(ours.kind == "generate_until" for ours, _ in pairs):
                return False
            units = [lockstep.unit(pair) for pair in pairs]
            entries = (entry for unit in units for entry in store.entries(unit, lockstep.models))
            return not all(entry.is_there for entry in entries)

    def _one_by_one(self, base: ModelSource, candidate: ModelSource) -> list[Evaluation]:
        """Score the base; then score the candidate against what it leaves."""
        file = self.context.choices.distributions.file
        with ExitStack() as run:
            with self.context.open_model(base) as model:
                ours, references = self._score_base(model, run, file)
            try:
                with self.context.open_model(candidate) as model:
                    return self._score_candidate(model, references, ours)
            except FallbackError:
                if file is not None:  # both start again, and its base was scored otherwise
                    file.unlink(missing_ok=True)
                raise

    def _score_base(
        self, model: LoadedModel, run: ExitStack, file: Path | None = None
    ) -> tuple[Evaluation, BaseReferences]:
        """Score an open base, and keep its references.

        Args:
            run: ends with the run, and with it what nothing would recognise later.
            file: where they are to be written, too.
        """
        _check_shows_distributions(model)
        self.context.check_waiting()
        store, top_k = self._executor.store, self.context.choices.distributions.top_k
        key, folder = store.key(model.scorer), None
        if key is None:
            folder = Path(run.enter_context(TemporaryDirectory(prefix="evalguard-references-")))
        references = store.references_of(key, top_k=top_k, folder=folder)
        self._say_scored_again(model, references)
        job = ScoringJob(models=[model], leaves=references)
        with ExitStack() as stack:
            if file is not None:
                facts = describe_reference(model.name, model.scorer.describe(), top_k)
                facts |= {"samples": SAMPLES}
                writer = stack.enter_context(_open_writer(file, facts, self._executor.note))
                job.write = _AnswerFile(self._executor, writer).add
            (ours,) = self._executor.score(job)
        return ours, references

    def _say_scored_again(self, base: LoadedModel, references: BaseReferences) -> None:
        """Say why a base is run whose scores are all kept."""
        executor, scorer = self._executor, base.scorer
        with interruptible("looking into the cache"):
            requests = [executor.requests(task, scorer) for task in executor.tasks.names]
            blocks = [
                block for task_requests in requests for block in executor.blocks(task_requests)
            ]
            asked = [block for block in blocks if block.kind != "generate_until"]
            all_kept = all(executor.store.entry(block, base).is_there for block in asked)
            entries = [entry for block in asked for entry in references.entries(block, [base])]
        if all_kept and not all(entry.is_there for entry in entries):
            executor.progress.note(
                f"{base.name}: scored once more, since its scores are kept and its distributions "
                "are not; they are from now on (--distributions off does without)"
            )

    def _score_candidate(
        self, model: LoadedModel, references: BaseReferences, base: Evaluation
    ) -> list[Evaluation]:
        """Score an open candidate against what was kept of the base; both evaluations."""
        _check_shows_distributions(model)
        if "tokens" not in self.context.choices.declared:
            check_vocabularies(base.description, model.scorer.describe())
        job = ScoringJob(models=[model], beside=references)
        (theirs,) = self._executor.score(job)
        return self._measured([base, theirs], job.divergences)

    def _measured(self, found: Sequence[Evaluation], of: DivergenceTables) -> list[Evaluation]:
        """Give the candidate what was measured, and say which tasks have no positions."""
        base, candidate = found
        divergences = of.of(self._executor.tasks.names)
        notes = tuple(
            f"distributions of {task} are not compared: {divergence.reason}"
            for task, divergence in divergences.items()
            if divergence.reason == GENERATION_ONLY
        )
        return [
            _with_notes(base, notes),
            replace(_with_notes(candidate, notes), divergences=divergences),
        ]

    def _refuse_unmeasured(self, hindrance: LockstepObstacle) -> None:
        """Refuse to leave distributions out where the user asked for them.

        Raises:
            UsageError: naming what stands in the way.
        """
        if self.context.choices.distributions.mode != "auto":
            raise UsageError(
                f"distributions cannot be compared side by side: {hindrance}", hint=_SCORES_HINT
            )

    def _say_unmeasured(
        self, hindrance: LockstepObstacle, found: Sequence[Evaluation]
    ) -> list[Evaluation]:
        """Say why distributions are not compared, and what does that.

        Every reader has to see it, unless nothing has any or the tokens that both sides show stand
        in for them.
        """
        base, candidate = found
        text = f"distributions are not compared: {hindrance}"
        estimated = bool(base.shown) and bool(candidate.shown)
        if estimated or not self._executor.tasks.of_likelihoods:
            return [_with_notes(evaluation, (text,)) for evaluation in found]
        remedy = f"; {hindrance.remedy}" if hindrance.remedy else ""
        finding = Finding(
            kind="distributions_unknown",
            text=text + remedy,
            values={"by_reference": False, "served": hindrance.served},
        )
        return [base, replace(candidate, findings=(*candidate.findings, finding))]

    def _apart(self, sources: Sequence[ModelSource]) -> LockstepObstacle | None:
        """Why two models cannot both be loaded into this process; None if they can."""
        if self.context.choices.policy.scorer == "harness":
            return LockstepObstacle("lm-eval's own path (--scorer harness) shows none")
        for source in sources:
            if not shows_distributions(source.variant):
                return _no_distributions(source.name, source.variant.model)
        if self.context.options.worker == "always":
            return LockstepObstacle("models run in worker processes", apart=True)
        for source in sources:
            if brings_code(source.variant, plan_conversion(source.variant)):
                reason = f"{source.name} runs code of others, so it has a process of its own"
                return LockstepObstacle(reason, apart=True)
            if has_own_process(source.variant):
                reason = f"{source.name} runs in a worker process"
                return LockstepObstacle(reason, apart=True)
        if self.context.memory.takes_turns:
            return LockstepObstacle("memory sequential loads one model at a time", apart=True)
        return None

    def _no_room(self, first: LoadedModel, candidate: ModelSource) -> LockstepObstacle | None:
        """Why a second model does not fit beside the first one; None if it does, or has to."""
        if self.context.choices.distributions.mode == "lockstep":
            return None
        if self.context.holds_beside(first, candidate):
            return None
        device = first.scorer.describe().device
        return LockstepObstacle(
            f"{candidate.name} does not fit on {device} beside {first.name}", True
        )


def are_separate_servers(sources: Sequence[ModelSource]) -> bool:
    """Whether all models are served, each by a server of its own; one server is asked in turns."""
    if not all(source.variant.model in SERVED_TYPES for source in sources):
        return False
    plans = [plan_conversion(source.variant) for source in sources]
    # Equal servers are started once.
    places: list[object] = [
        plan.model_args.get("base_url")
        if source.variant.serve is None
        else [source.variant.serve.declared, dict(plan.serve_flags), dict(plan.serve_env)]
        for source, plan in zip(sources, plans, strict=True)
    ]
    return None not in places and len({digest_of(server) for server in places}) == len(places)


def _local_obstacle(model: LoadedModel) -> LockstepObstacle | None:
    """Why a model's distributions cannot be had in this process; None if they can."""
    description = model.scorer.describe()
    if not description.gives_rows:
        return _no_distributions(model.name, description.model_type)
    if runs_here(model.scorer):
        return None
    return LockstepObstacle(f"{model.name} does not run in this process", apart=True)


def _no_distributions(name: str, model_type: str) -> LockstepObstacle:
    if model_type not in REMOTE_TYPES:
        return LockstepObstacle(
            f"{name}, of type {model_type}, shows none; causal models of type hf do"
        )
    return LockstepObstacle(
        f"{name} is asked over a server, which shows no whole ones",
        remedy="name the model's folder, its GGUF file or vllm:FOLDER, or bound KL from below by "
        f"the tokens that a server of completions shows ({TOP_ARGUMENT}=20 among its model args)",
        served=True,
    )


def _other_vocabulary(first: LoadedModel, second: LoadedModel) -> LockstepObstacle | None:
    return _unlike_vocabularies(first.scorer.describe(), second.scorer.describe())


def _no_rows(source: ModelSource, told: ModelDescription) -> LockstepObstacle | None:
    return None if told.gives_rows else _no_distributions(source.name, told.model_type)


def _unlike_vocabularies(
    base: ModelDescription, candidate: ModelDescription
) -> LockstepObstacle | None:
    if share_vocabulary(base, candidate):
        return None
    return LockstepObstacle("the vocabularies of base and candidate differ")


def _with_notes(evaluation: Evaluation, notes: Sequence[str]) -> Evaluation:
    return replace(evaluation, notes=(*evaluation.notes, *notes))


def _block_pairs(
    executor: Executor, lockstep: ScoringJob
) -> Iterator[tuple[RequestBlock, RequestBlock]]:
    """Both models' blocks of all tasks, side by side."""
    for task in executor.tasks.names:
        ours, theirs = (
            executor.blocks(executor.requests(task, scorer)) for scorer in lockstep.scorers
        )
        yield from zip(ours, theirs, strict=True)


_PLAINER_OPTIONS = {"share_prefixes": "run: {share_prefixes: false}", "scorer": "--scorer harness"}


@dataclass(slots=True)
class _AnswerFile:
    """Takes a base's answers for a file, until a disk refuses them."""

    executor: Executor
    writer: ReferenceWriter
    given_up: bool = False

    def add(self, answer: UnitAnswer) -> None:
        """Write an answer; the scores do not depend on a file that others may want."""
        if self.given_up:
            return
        block = answer.unit.block
        task = answer.unit.task
        references = answer.references or [None] * len(block.requests)
        position = (self.executor.tasks.names.index(task), block.index)
        try:
            self.writer.add(task, block.digest, answer.responses, references, place=position)
        except StoreError as error:
            self.given_up = True
            self.writer.give_up()
            self.executor.find_unstored(f"no reference file was written: {error}")


@contextmanager
def _open_writer(
    file: Path, facts: Mapping[str, Any], note: Callable[[str], None]
) -> Iterator[ReferenceWriter]:
    """Write a reference file; a disk that refuses it in the end costs the file and no score."""
    with ExitStack() as stack:
        yield stack.enter_context(ReferenceWriter(file, facts))
        try:
            stack.close()
        except StoreError as error:
            note(f"no reference file was written: {error}")


def _check_shows_distributions(model: LoadedModel) -> None:
    """Refuse a model that shows no distributions.

    Raises:
        UsageError: naming its type.
    """
    facts = model.scorer.describe()
    if not facts.gives_rows:
        raise UsageError(
            f"no reference can be made with {model.name}, of type {facts.model_type}: it shows no "
            "distributions; causal models of type hf do",
            hint=_SCORES_HINT,
        )
