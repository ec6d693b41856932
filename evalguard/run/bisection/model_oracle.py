"""The oracle over a real model.

What its probes share, which ends of the search the comparison has scored, and which settings
have no effect once loaded.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from evalguard.bisect.oracle import Floats, Indices, Question, Untestable
from evalguard.core.gate_state import Key
from evalguard.core.reports.bisect_report import Loads
from evalguard.core.scorer import ModelDescription, ScoringPolicy
from evalguard.core.scores import ScoreTable
from evalguard.core.settings import Assignment, Setting, Value, Variant, digest_of
from evalguard.errors import EvalguardError, EvaluationError, UsageError
from evalguard.harness.tasks import load_tasks
from evalguard.models.tokenizers import clear_shared_texts
from evalguard.report.progress import ProgressLine
from evalguard.run.bisection.block_scoring import AssignedCandidate, DocumentBlock
from evalguard.run.bisection.oracle import OracleContext, OracleRequest, SearchScale
from evalguard.run.bisection.probes import Probes
from evalguard.run.choices import Choices
from evalguard.run.executing.batches import policy_for_ends, uses_batches_of
from evalguard.run.executing.refusals import refusal_of
from evalguard.run.loading.loading_facts import KnownModel, KnownModels
from evalguard.run.loading.task_code import note_task_code
from evalguard.run.options import CompareOptions
from evalguard.run.scoring.evaluate import Evaluator
from evalguard.run.scoring.scoring import ScoredSide
from evalguard.run.sources import ModelSource, with_location
from evalguard.store.block_cache import open_cache_dir
from evalguard.store.fact_cache import FactCache, open_facts


@dataclass(slots=True, kw_only=True, eq=False)
class ModelOracle:
    """An oracle with blocks, several questions at once and values beyond two.

    Attributes:
        scale: on which the scores are.
        declared: the settings whose two values differ as they are written.
        assigned_to: makes the candidate under an assignment.
        settings: those that are searched: their two values differ, in the loaded model too.
        inert_by_readback: those whose two values were one in the loaded model. They are never
            probed, and keep their candidate's value.
        reference_is_base: whether identities prove that the model with all settings at reference
            is the base, so that its scores are the base's; else it is measured.
        expected_load, expected_document: seconds that they took in the comparison; 0: unknown.
    """

    candidate: ModelSource
    scale: SearchScale
    declared: tuple[Setting, ...]
    document_blocks: tuple[DocumentBlock, ...]
    probes: Probes
    assigned_to: Callable[[Assignment], AssignedCandidate]
    inert_by_readback: tuple[str, ...] = ()
    reference_is_base: bool = False
    expected_load: float = 0.0
    expected_document: float = 0.0
    _ends: dict[str, Floats] = field(default_factory=dict)
    _assigned: dict[str, AssignedCandidate] = field(default_factory=dict)
    _refused: dict[str, Untestable] = field(default_factory=dict)

    @property
    def settings(self) -> tuple[str, ...]:
        """Names of the settings that are searched."""
        names = (setting.name for setting in self.declared)
        return tuple(name for name in names if name not in self.inert_by_readback)

    @property
    def n_documents(self) -> int:
        """Number of documents that have a value of the metric."""
        return sum(block.documents.size for block in self.document_blocks)

    @property
    def blocks(self) -> Sequence[Indices]:
        """Every document once, in the blocks in which they are answered."""
        return [block.documents for block in self.document_blocks]

    @property
    def seconds_per_evaluation(self) -> float:
        """Seconds of loading one assignment and answering all documents; 0 where that is not known.

        As measured by now, else as the comparison took; with as many jobs as there are.
        """
        probes = self.probes
        load = probes.loading_seconds / probes.loads if probes.loads else self.expected_load
        one = self.expected_document
        if probes.documents:
            one = probes.scoring_seconds / probes.documents
        if not one:  # all scores were kept: nobody has seen a model answer
            return 0.0
        shared = min(probes.runner.jobs, len(self.document_blocks))
        return load + one * self.n_documents / shared

    @property
    def loads(self) -> Loads:
        """How models came about so far."""
        return self.probes.runner.loads

    def measure(self, candidate_settings: frozenset[str], documents: Indices) -> Floats:
        """Scores of documents, with these settings at their candidate value; see ``Oracle``.

        Raises:
            Untestable: typed; this assignment cannot be built or run.
            EvalguardError: nothing could be, or a disk is full.
        """
        return _raise_refusal(self.measure_all([(candidate_settings, documents)])[0])

    def measure_all(self, questions: Sequence[Question]) -> list[Floats | Untestable]:
        """Answer several questions, side by side as far as there are jobs; see ``measure``."""
        asked = [(self._values(names), documents) for names, documents in questions]
        return self._answer_questions(asked)

    def measure_values(self, values: Mapping[str, Value], documents: Indices) -> Floats:
        """As ``measure``: these settings have these values, all others their candidate's."""
        self._check(values)
        at_candidate = self._values(frozenset(self.settings))
        return _raise_refusal(self._answer_questions([({**at_candidate, **values}, documents)])[0])

    def assigned(self, values: Assignment) -> AssignedCandidate:
        """The candidate under an assignment of the settings that are searched.

        Raises:
            EvalguardError: it cannot be planned or built, or a constraint excludes it.
        """
        place = digest_of(dict(values))
        if place in self._refused:
            raise self._refused[place]
        if place not in self._assigned:
            at_candidate = self._values(frozenset(self.settings))
            found = self.assigned_to(values)
            found.settings = tuple(n for n in self.settings if values[n] == at_candidate[n])
            self._assigned[place] = found
        return self._assigned[place]

    def stands_for(self, candidate_settings: frozenset[str], scores: Floats) -> None:
        """Take scores of all documents for those of an assignment: it was scored before."""
        self._ends[digest_of(dict(self._values(candidate_settings)))] = scores

    def _values(self, candidate_settings: frozenset[str]) -> dict[str, Value]:
        self._check(candidate_settings)
        return {
            setting.name: candidate_value(self.candidate.variant, setting)
            if setting.name in candidate_settings
            else setting.reference
            for setting in self.declared
            if setting.name not in self.inert_by_readback
        }

    def _check(self, names: Mapping[str, Value] | frozenset[str]) -> None:
        unknown = sorted(set(names) - set(self.settings))
        if unknown:
            raise UsageError(
                f"'{self.candidate.name}' is not searched for setting '{unknown[0]}'",
                hint=f"settings that are: {', '.join(self.settings) or 'none'}",
            )

    def _answer_questions(
        self, asked: Sequence[tuple[Assignment, Indices]]
    ) -> list[Floats | Untestable]:
        to_measure: list[tuple[AssignedCandidate, list[DocumentBlock]]] = []
        taken: list[AssignedCandidate | Floats | Untestable] = []
        for values, documents in asked:
            found = self._taken(values)
            taken.append(found)
            if isinstance(found, AssignedCandidate):
                wanted = set(documents.tolist())
                parts = [b for b in self.document_blocks if wanted & set(b.documents.tolist())]
                to_measure.append((found, parts))
        self.probes.answer(_merge_questions(to_measure))
        return [
            self._answer(found, values, documents)
            for found, (values, documents) in zip(taken, asked, strict=True)
        ]

    def _taken(self, values: Assignment) -> AssignedCandidate | Floats | Untestable:
        """What stands for an assignment: scores that are known, or a model to ask."""
        known = self._ends.get(digest_of(dict(values)))
        if known is not None:
            return known
        try:
            return self.assigned(values)
        except Untestable as refusal:
            return refusal
        except EvalguardError as error:  # a constraint, a build recipe that failed
            why = refusal_of(error, loaded=False)
            self._refused[digest_of(dict(values))] = why
            return why

    def _answer(
        self, found: AssignedCandidate | Floats | Untestable, values: Assignment, documents: Indices
    ) -> Floats | Untestable:
        if isinstance(found, np.ndarray):
            return found[documents]
        refusal = found if isinstance(found, Untestable) else found.refusal
        if refusal is not None:
            self._check_end(refusal, values)
            return refusal
        assert isinstance(found, AssignedCandidate)
        scores = np.full(self.n_documents, math.nan)
        for block in self.document_blocks:
            if block.digest in found.values:
                scores[block.documents] = self.scale.scores(found.values[block.digest])
        return scores[documents]

    def _check_end(self, refusal: Untestable, values: Assignment) -> None:
        """The base's end of the search has to run: nothing could be held against anything."""
        if digest_of(dict(values)) == digest_of(dict(self._values(frozenset()))):
            raise EvaluationError(
                f"{self.candidate.name} cannot be run with all settings at reference, so that "
                f"there is nothing to start from: {refusal.reason}",
                hint=refusal.hint,
            )


def _merge_questions(
    wanted: Sequence[tuple[AssignedCandidate, list[DocumentBlock]]],
) -> list[tuple[AssignedCandidate, list[DocumentBlock]]]:
    """Questions about one assignment put together: no block is answered twice."""
    merged: dict[int, tuple[AssignedCandidate, list[DocumentBlock]]] = {}
    for assigned, blocks in wanted:
        _, before = merged.setdefault(id(assigned), (assigned, []))
        before += [block for block in blocks if block not in before]
    return list(merged.values())


def _raise_refusal(answer: Floats | Untestable) -> Floats:
    if isinstance(answer, Untestable):
        raise answer
    return answer


# Place of a bisection: the task, the caches, and how every assignment is scored.


Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeContext:
    """What probes share: the task, the caches, and how all are scored.

    ``candidate`` is as it was compared; ``models`` what is remembered of models, None: nothing;
    ``kept`` the folder of what is finished, None: nothing is kept.
    """

    candidate: ModelSource
    choices: Choices
    options: CompareOptions
    key: Key
    evaluator: Evaluator
    policy: ScoringPolicy
    cache_dir: Path
    models: KnownModels | None
    kept: Path | None

    @classmethod
    def opened(
        cls, inquiry: OracleRequest, surroundings: OracleContext, stack: ExitStack
    ) -> ProbeContext:
        """Load the task and open the caches; ``stack`` clears up.

        Raises:
            EvalguardError: as loading a task does.
        """
        choices, options = surroundings.choices, surroundings.options
        candidate, task = inquiry.candidate, inquiry.key[0]
        cache_dir = open_cache_dir(options.cache_dir)
        kept = cache_dir if options.use_cache else surroundings.kept
        # Before the task brings in libraries, which set variables of their own.
        models = KnownModels.kept_in(cache_dir) if options.use_cache else None
        stack.callback(clear_shared_texts)
        if models is not None:
            stack.callback(models.left)
        ends = [side.description for side in inquiry.scored if side.description is not None]
        tasks = load_tasks([task], options=choices.task_options)
        note_task_code(tasks.executed)
        evaluator = Evaluator(
            tasks=tasks,
            kept=kept,
            progress=_NotesOnly(surroundings.say),
            chat=bool(choices.task_options.apply_chat_template),
        )
        policy = policy_for_ends(candidate.policy or choices.policy, ends, candidate.variant.model)
        return cls(
            candidate=replace(candidate, policy=policy),
            choices=choices,
            options=replace(options, worker="always"),
            key=inquiry.key,
            evaluator=evaluator,
            policy=policy,
            cache_dir=cache_dir,
            models=models,
            kept=kept,
        )

    @property
    def declared(self) -> tuple[Setting, ...]:
        """The candidate's settings whose two values differ as they are written."""
        return settings_off_reference(self.candidate.variant)

    def assigned(self, values: Assignment) -> AssignedCandidate:
        """The candidate under an assignment of some of its settings.

        Raises:
            EvalguardError: it cannot be planned or built, or a constraint excludes it.
        """
        variant = self.candidate.variant.assigned(values)
        return self.identified(replace(self.candidate, variant=variant))

    @property
    def facts(self) -> FactCache | None:
        """What is known of assignments beside their answers."""
        return None if self.kept is None else open_facts(self.kept)

    def identified(self, source: ModelSource) -> AssignedCandidate:
        """A model, with what is remembered of it.

        Raises:
            EvalguardError: it cannot be built.
        """
        known = self._known(source)
        description = None if known is None else known.description
        return AssignedCandidate(source=source, known=known, description=description)

    def _known(self, source: ModelSource) -> KnownModel | None:
        """What is remembered of a model; a build recipe is run if it has to be."""
        if self.models is None:
            return None
        with with_location(source):
            return self.models.of(source.variant, self.policy, worker=True)


class _NotesOnly(ProgressLine):
    """Notes go where the bisection's go; nothing else is shown."""

    def __init__(self, say: Say) -> None:
        super().__init__(quiet=True)
        self._say = say

    def note(self, text: str) -> None:
        """Pass a note on."""
        self._say(text)


# Ends of a search: of which of its two extremes the comparison has the scores.


def adopt_compared_ends(
    oracle: ModelOracle,
    reference: AssignedCandidate,
    place: ProbeContext,
    scored: tuple[ScoredSide, ScoredSide],
    tables: tuple[ScoreTable, ScoreTable] | None,
    *,
    as_compared: bool,
) -> None:
    """See which settings are inert, and which ends of the search the comparison has scored.

    Args:
        reference: the candidate with all its settings at reference.
        tables: of the searched metric; None of a limit, on which the base is at 0 and the candidate
            is measured, as probes are.
        as_compared: whether the oracle's blocks are those of the comparison; batches depend on
            them.

    Raises:
        EvaluationError: it cannot be loaded.
    """
    described = reference.description or _describe_reference(reference, oracle.probes)
    if reference.description is None:
        reference.describe_as(described)
    base, candidate = scored[0].description, scored[1].description
    if candidate is not None:
        oracle.inert_by_readback = inert_by_readback(oracle.declared, described, candidate)
    oracle.reference_is_base = same_model(base, described)
    if tables is None:
        if oracle.reference_is_base and uses_batches_of(place.policy, described):
            oracle.stands_for(frozenset(), np.zeros(oracle.n_documents))
        return
    ends = [
        (frozenset[str](), base if oracle.reference_is_base else None, tables[0]),
        (frozenset(oracle.settings), candidate, tables[1]),
    ]
    for names, description, table in ends:
        if description is None or not uses_batches_of(place.policy, description):
            continue
        if as_compared and table.doc_ids.tolist() == tables[0].doc_ids.tolist():
            oracle.stands_for(names, oracle.scale.scores(table.values))


def _describe_reference(reference: AssignedCandidate, probes: Probes) -> ModelDescription:
    started = time.monotonic()
    try:
        found = probes.runner.ask(reference.source, lambda scorer: scorer.describe())
    except EvalguardError as error:
        raise EvaluationError(
            f"{reference.source.name} cannot be loaded with all settings at reference, so that "
            f"there is nothing to start from: {error}",
            hint=error.hint,
        ) from error
    probes.loading_seconds += time.monotonic() - started
    probes.loads += 1
    return found


# Effective values: what a loaded model shows of its settings, whatever was asked for.


def candidate_value(variant: Variant, setting: Setting) -> Value:
    """The value that a setting has in the candidate that was compared."""
    return variant.assignment.get(setting.name, setting.candidate)


def settings_off_reference(variant: Variant) -> tuple[Setting, ...]:
    """The settings whose value in the candidate is not their reference; 1, 1.0 and true differ."""
    return tuple(
        setting
        for setting in variant.settings
        if not _same_value(candidate_value(variant, setting), setting.reference)
    )


def inert_by_readback(
    settings: Sequence[Setting], reference: ModelDescription, candidate: ModelDescription
) -> tuple[str, ...]:
    """The settings whose two values were one in the loaded model.

    A dtype of the whole model is read back as that of most weights: that proves too little. A
    module that was asked of the base is read back as the candidate's own where both are one.
    """

    def is_inert(setting: Setting) -> bool:
        name, target = setting.name, setting.target
        if name not in reference.effective or str(target) == "model_args.dtype":
            return False
        if target.kind == "module" and name not in candidate.effective:
            return setting.candidate is None and reference.effective[name] is None
        known = name in candidate.effective
        return known and _same_value(reference.effective[name], candidate.effective[name])

    return tuple(setting.name for setting in settings if is_inert(setting))


def same_model(ours: ModelDescription | None, theirs: ModelDescription | None) -> bool:
    """Whether identities prove that two models are one: everything read back is equal.

    A setting that only one of them has proves nothing: what it sets is not read from the other.
    """
    if ours is None or theirs is None or ours.identity is None or theirs.identity is None:
        return False
    return _same_value(_comparable_identity(ours.identity), _comparable_identity(theirs.identity))


def _comparable_identity(identity: Mapping[str, Value]) -> Value:
    """An identity with its settings by target and effective value, in whatever order."""
    settings = identity.get("settings")
    found: dict[str, Value] = {}
    for entry in settings if isinstance(settings, (list, tuple)) else ():
        assert isinstance(entry, (list, tuple))
        found[str(entry[0])] = entry[2]
    return {**identity, "settings": found}


def _same_value(one: Value, other: Value) -> bool:
    return digest_of([one]) == digest_of([other])
