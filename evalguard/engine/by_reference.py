"""By reference: the base is scored first, or not at all, and the candidate compared with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from evalguard.core.divergence import SAMPLES
from evalguard.distributions.reference_file import ReferenceWriter
from evalguard.distributions.task_distributions import DivergenceTables
from evalguard.engine.base_references import BaseReferences
from evalguard.engine.evaluate import Evaluation, Evaluator
from evalguard.engine.fairness import check_vocabularies
from evalguard.engine.interrupts import interruptible
from evalguard.engine.kept_blocks import LoadedModel
from evalguard.engine.reference_scorer import ReferenceScorer, describe_reference
from evalguard.engine.run_context import RunContext
from evalguard.engine.single_model import FileBase, SingleModelScoring
from evalguard.engine.sources import ModelSource, ReferenceSource
from evalguard.engine.work import UnitAnswer
from evalguard.errors import FallbackError, StoreError, UsageError


@dataclass(frozen=True, slots=True)
class ReferenceScoring:
    """Two models that are never loaded at the same time."""

    context: RunContext

    def evaluate(
        self, base: ModelSource, candidate: ModelSource
    ) -> tuple[list[Evaluation], DivergenceTables]:
        """Score the base; then score the candidate against what it leaves.

        Raises:
            EvaluationError, Interrupted: as loading and scoring do.
        """
        file = self.context.choices.distributions.file
        with ExitStack() as stack:
            ours, references = self._scored(base, file, stack)
            try:
                theirs, found = self._against(candidate, references, ours)
            except FallbackError:
                if file is not None:  # both start again, and its base was scored otherwise
                    file.unlink(missing_ok=True)
                raise
        return [ours, theirs], found

    def evaluate_beside(
        self, base: ReferenceSource, candidate: ModelSource
    ) -> tuple[list[Evaluation], DivergenceTables]:
        """Read what a file keeps of the base; then score the candidate against it.

        Raises:
            UsageError: the file is damaged, or its base was scored otherwise than the candidate
                can be.
            EvaluationError, Interrupted: as loading and scoring do.
        """
        with closing(ReferenceScorer(base, self.context.choices.policy)) as stored:
            self.context.match_batches_of(stored)
            references = BaseReferences(top_k=stored.top_k, key=stored.key, file=stored)
            block_scorer = FileBase(base=LoadedModel(base.name, stored), references=references)
            (ours,) = self.context.evaluator.evaluate_with(block_scorer)
            try:
                theirs, found = self._against(candidate, references, ours)
            except FallbackError as error:  # it may have been hours of work, and stays
                raise UsageError(
                    f"{base.path} holds a base that was scored otherwise than this candidate can "
                    f"be: {error}",
                    hint=f"make another file, with {_PLAINER_OPTIONS[error.giving_up]}",
                ) from error
        return [ours, theirs], found

    def _scored(
        self, base: ModelSource, file: Path | None, run: ExitStack
    ) -> tuple[Evaluation, BaseReferences]:
        """Score the base, and keep its references.

        Args:
            file: where they are to be written, too.
            run: ends with the run, and with it what nothing would recognise later.
        """
        with self.context.open_model(base) as model:
            return self._referenced(model, run, file, base)

    def _referenced(
        self,
        model: LoadedModel,
        run: ExitStack,
        file: Path | None = None,
        source: ModelSource | None = None,
    ) -> tuple[Evaluation, BaseReferences]:
        evaluator = self.context.evaluator
        check_shows_distributions(model)
        with ExitStack() as stack:
            references = self._references(model, run)
            self._say_scored_again(model, references)
            scoring = SingleModelScoring(model=model, store=evaluator.store, leaves=references)
            if file is not None and source is not None:
                facts = describe_reference(source, model.scorer.describe(), references.top_k)
                facts |= {"samples": SAMPLES}
                writer = stack.enter_context(_open_writer(file, facts, evaluator.note))
                scoring.write = _FileOfAnswers(evaluator, writer).add
            (ours,) = evaluator.evaluate_with(scoring)
        return ours, references

    def _say_scored_again(self, base: LoadedModel, references: BaseReferences) -> None:
        """Say why a base is run whose scores are all kept."""
        evaluator, scorer = self.context.evaluator, base.scorer
        with interruptible("looking into the cache"):
            requests = [evaluator.requests(task, scorer) for task in evaluator.tasks.names]
            blocks = [block for one in requests for block in evaluator.blocks(one)]
            asked = [block for block in blocks if block.kind != "generate_until"]
            kept = all(evaluator.store.entry(block, base).is_there for block in asked)
            entries = [entry for block in asked for entry in references.entries(block, [base])]
        if kept and not all(entry.is_there for entry in entries):
            evaluator.progress.note(
                f"{base.name}: scored once more, since its scores are kept and its distributions "
                "are not; they are from now on (--distributions off does without)"
            )

    def _references(self, model: LoadedModel, run: ExitStack) -> BaseReferences:
        store, top_k = self.context.evaluator.store, self.context.choices.distributions.top_k
        key, folder = store.key(model.scorer), None
        if key is None:
            folder = Path(run.enter_context(TemporaryDirectory(prefix="evalguard-references-")))
        return store.references_of(key, top_k=top_k, folder=folder)

    def evaluate_open(
        self, first: LoadedModel, second: LoadedModel
    ) -> tuple[list[Evaluation], DivergenceTables]:
        """Score the second model against what is kept of the first one.

        Raises:
            UsageError, EvaluationError, Interrupted: as ``evaluate``.
        """
        with ExitStack() as run:
            ours, references = self._referenced(first, run)
            theirs, found = self._compared(second, references, ours)
        return [ours, theirs], found

    def score_base(self, base: LoadedModel, run: ExitStack) -> tuple[Evaluation, BaseReferences]:
        """Score an open base, and keep its references for as long as ``run`` lasts, at least."""
        return self._referenced(base, run)

    def score_candidate(
        self, candidate: LoadedModel, references: BaseReferences, base: Evaluation
    ) -> tuple[Evaluation, DivergenceTables]:
        """Score an open candidate against what was kept of the base."""
        return self._compared(candidate, references, base)

    def _against(
        self, candidate: ModelSource, references: BaseReferences, base: Evaluation
    ) -> tuple[Evaluation, DivergenceTables]:
        with self.context.open_model(candidate) as model:
            return self._compared(model, references, base)

    def _compared(
        self, model: LoadedModel, references: BaseReferences, base: Evaluation
    ) -> tuple[Evaluation, DivergenceTables]:
        check_shows_distributions(model)
        if "tokens" not in self.context.choices.declared:
            check_vocabularies(base.description, model.scorer.describe())
        evaluator = self.context.evaluator
        against = SingleModelScoring(model=model, store=evaluator.store, beside=references)
        (theirs,) = evaluator.evaluate_with(against)
        return theirs, against.divergences


_PLAINER_OPTIONS = {"share_prefixes": "run: {share_prefixes: false}", "scorer": "--scorer harness"}


@dataclass(slots=True)
class _FileOfAnswers:
    """Takes a base's answers for a file, until a disk refuses them."""

    evaluator: Evaluator
    writer: ReferenceWriter
    given_up: bool = False

    def add(self, answer: UnitAnswer) -> None:
        """Write an answer; the scores do not depend on a file that others may want."""
        if self.given_up:
            return
        block = answer.unit.block
        task = block.requests[0].task
        references = answer.references or [None] * len(block.requests)
        place = (self.evaluator.tasks.names.index(task), block.index)
        try:
            self.writer.add(task, block.digest, answer.responses, references, place=place)
        except StoreError as error:
            self.given_up = True
            self.writer.give_up()
            self.evaluator.find_unstored(f"no reference file was written: {error}")


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


def check_shows_distributions(model: LoadedModel) -> None:
    """Refuse a model that shows no distributions.

    Raises:
        UsageError: naming its type.
    """
    told = model.scorer.describe()
    if not told.gives_rows:
        raise UsageError(
            f"no reference can be made with {model.name}, of type {told.model_type}: it shows no "
            "distributions; causal models of type hf do",
            hint="--distributions off compares the scores alone",
        )
