"""Place of a bisection: the task, the caches, and how every assignment is scored."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from evalguard.gate_reason import Key
from evalguard.harness import load_tasks
from evalguard.models.encoded_texts import forget_texts
from evalguard.pipeline.bisection.assigned import Assigned
from evalguard.pipeline.bisection.batches import settled_policy
from evalguard.pipeline.bisection.effective import differing
from evalguard.pipeline.bisection.inquiry import Inquiry, Surroundings
from evalguard.pipeline.choices import Choices
from evalguard.pipeline.evaluate import Evaluator
from evalguard.pipeline.known_model import KnownModel, KnownModels
from evalguard.pipeline.options import CompareOptions
from evalguard.pipeline.places import placed
from evalguard.pipeline.sources import ModelSource
from evalguard.report.progress import Progress
from evalguard.scorer import ScoringPolicy
from evalguard.settings import Assignment, Setting
from evalguard.store import ScoreCache, open_cache_dir

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What probes share: the task, the caches, and how all are scored.

    ``candidate`` is as it was compared; ``models`` what is remembered of models, None: nothing.
    """

    candidate: ModelSource
    choices: Choices
    options: CompareOptions
    key: Key
    evaluator: Evaluator
    policy: ScoringPolicy
    cache_dir: Path
    models: KnownModels | None

    @classmethod
    def opened(cls, inquiry: Inquiry, surroundings: Surroundings, stack: ExitStack) -> Place:
        """Load the task and open the caches; ``stack`` clears up.

        Raises:
            EvalguardError: as loading a task does.
        """
        choices, options = surroundings.choices, surroundings.options
        candidate, task = inquiry.candidate, inquiry.key[0]
        cache_dir = open_cache_dir(options.cache_dir)
        # Before the task brings in libraries, which set variables of their own.
        models = KnownModels.kept_in(cache_dir) if options.use_cache else None
        stack.callback(forget_texts)
        if models is not None:
            stack.callback(models.left)
        ends = [side.description for side in inquiry.scored if side.description is not None]
        evaluator = Evaluator(
            tasks=load_tasks([task], options=choices.task_options),
            cache=ScoreCache(cache_dir / "scores") if options.use_cache else None,
            progress=_Said(surroundings.say),
            chat=bool(choices.task_options.apply_chat_template),
        )
        policy = settled_policy(candidate.policy or choices.policy, ends, candidate.variant.model)
        return cls(
            candidate=replace(candidate, policy=policy),
            choices=choices,
            options=replace(options, worker="always"),
            key=inquiry.key,
            evaluator=evaluator,
            policy=policy,
            cache_dir=cache_dir,
            models=models,
        )

    @property
    def declared(self) -> tuple[Setting, ...]:
        """The candidate's settings whose two values differ as they are written."""
        return differing(self.candidate.variant)

    def assigned(self, values: Assignment) -> Assigned:
        """The candidate under an assignment of some of its settings.

        Raises:
            EvalguardError: it cannot be planned or built, or a constraint excludes it.
        """
        variant = self.candidate.variant.assigned(values)
        source = replace(self.candidate, variant=variant)
        known = self._known(source)
        description = None if known is None else known.description
        return Assigned(source=source, known=known, description=description)

    def _known(self, source: ModelSource) -> KnownModel | None:
        """What is remembered of a model; a build recipe is run if it has to be."""
        if self.models is None:
            return None
        with placed(source):
            return self.models.of(source.variant, self.policy, worker=True)


class _Said(Progress):
    """Notes go where the bisection's go; nothing else is shown."""

    def __init__(self, say: Say) -> None:
        super().__init__(quiet=True)
        self._say = say

    def note(self, text: str) -> None:
        """Pass a note on."""
        self._say(text)
