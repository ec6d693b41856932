"""The place of a bisection: the task, the caches, and how every assignment is scored."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from evalguard.core.gate_state import Key
from evalguard.core.scorer import ScoringPolicy
from evalguard.core.settings import Assignment, Setting
from evalguard.harness.tasks import load_tasks
from evalguard.models.encoded_texts import clear_shared_texts
from evalguard.report.progress import ProgressLine
from evalguard.run.bisection.assigned_candidate import AssignedCandidate
from evalguard.run.bisection.effective_values import settings_off_reference
from evalguard.run.bisection.settings_oracle import OracleContext, OracleRequest
from evalguard.run.choices import Choices
from evalguard.run.error_places import with_location
from evalguard.run.executing.batches import policy_for_ends
from evalguard.run.loading.known_models import KnownModel, KnownModels
from evalguard.run.loading.task_code import note_task_code
from evalguard.run.options import CompareOptions
from evalguard.run.scoring.evaluate import Evaluator
from evalguard.run.scoring.task_scores import TaskScoring
from evalguard.run.sources import ModelSource
from evalguard.store.cache_folder import open_cache_dir
from evalguard.store.fact_cache import FactCache, open_facts

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
            scoring=TaskScoring(figures=choices.gate.figure_names, expected=choices.answers),
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
