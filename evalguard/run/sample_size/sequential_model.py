"""What one model was asked in looks, and what it answered."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from evalguard.core.scorer import ModelDescription, Response
from evalguard.harness.document_subset import documents_of
from evalguard.harness.request_blocks import RequestBlock
from evalguard.harness.requests import TaskRequests
from evalguard.harness.score_tables import TaskScores
from evalguard.run.executing.kept_blocks import LoadedModel
from evalguard.run.scoring.evaluate import Evaluation, Evaluator
from evalguard.run.sources import ModelSource


@dataclass(slots=True)
class _ModelTask:
    requests: TaskRequests
    responses: dict[tuple[int, int], Response] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class SequentialModel:
    """One model of a sequential run.

    ``evaluator`` is its own: notes of two models that take turns must not mix.
    """

    source: ModelSource
    evaluator: Evaluator
    description: ModelDescription | None = None
    _tasks: dict[str, _ModelTask] = field(default_factory=dict)
    _blocks: list[RequestBlock] = field(default_factory=list)

    def begin(self, model: LoadedModel, tasks: Iterable[str]) -> Mapping[str, TaskRequests]:
        """Build what the tasks ask of this model, which has to be loaded; once."""
        if self.description is None:
            self.description = model.scorer.describe()
            for task in tasks:
                self._tasks[task] = _ModelTask(self.evaluator.requests(task, model.scorer))
        return {name: task.requests for name, task in self._tasks.items()}

    def ask(self, model: LoadedModel, task: str, doc_ids: Collection[int]) -> None:
        """Let the model answer these documents."""
        asked = self._tasks[task]
        part = documents_of(asked.requests, doc_ids)
        self._blocks += self.evaluator.blocks(part)
        alone = self.evaluator.scoring_of(model)
        responses = self.evaluator.score_requests([part], alone)[0]
        for request, response in zip(part.requests, responses, strict=True):
            asked.responses[request.doc_id, request.index] = response

    def check_unchanged(self, model: LoadedModel) -> None:
        """Have a server asked its first prompts once more, after a look.

        Raises:
            EvaluationError: it is not the server any more that it was before.
        """
        self.evaluator.check_unchanged(model, self._blocks)

    def scores(self, task: str, doc_ids: Collection[int]) -> TaskScores:
        """Score these documents of a task, all of which have been answered."""
        asked = self._tasks[task]
        part = documents_of(asked.requests, doc_ids)
        answers = part.in_order(asked.responses)
        return self.evaluator.scoring.scores(self.source.name, part, answers, self.description)

    def evaluation(self, drawn: Mapping[str, Sequence[int]]) -> Evaluation:
        """The model's scores of the documents that were drawn in the end."""
        assert self.description is not None
        return Evaluation(
            name=self.source.name,
            description=self.description,
            scores={task: self.scores(task, doc_ids) for task, doc_ids in drawn.items()},
            shown=self.evaluator.scoring.shown_by(self.source.name),
            groups=self.evaluator.tasks.aggregates,
            notes=tuple(self.evaluator.notes),
            findings=tuple(self.evaluator.findings),
        )
