"""Scores the models of a comparison, one after the other, on the same tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from evalguard.pipeline.batch_check import check_batch_size
from evalguard.pipeline.bench import Bench, bench
from evalguard.pipeline.choices import Choices
from evalguard.pipeline.clusters import check_clusters
from evalguard.pipeline.evaluate import Evaluation, Evaluator
from evalguard.pipeline.fairness import TokenIds, check_encodings, check_vocabularies
from evalguard.pipeline.interruption import interruptible
from evalguard.pipeline.open_scorer import Opener
from evalguard.pipeline.options import CompareOptions
from evalguard.pipeline.sources import ModelSource
from evalguard.scorer import ModelDescription, Request, Scorer

# Enough to see a tokenizer that differs, and encoded in no time.
_ENCODED_DOCUMENTS = 8


def score_models(
    sources: Sequence[ModelSource],
    choices: Choices,
    options: CompareOptions,
    *,
    opener: Opener | None = None,
) -> list[Evaluation]:
    """Score each model on all tasks; at any time one model is loaded.

    Args:
        opener: loads a model in place of ``open_scorer``.

    Raises:
        UsageError, EvaluationError, Interrupted: as loading and scoring do. Finished blocks of
            documents stay in the score cache.
    """
    if not sources:
        return []
    with bench(choices, options, opener=opener) as place:
        scoring = _Scoring(place)
        return [scoring.score(source) for source in sources]


@dataclass(slots=True)
class _Scoring:
    """Scores one model after the other, and holds each against those before it."""

    bench: Bench
    _before: list[ModelDescription] = field(default_factory=list)
    _encoded: list[TokenIds] = field(default_factory=list)

    @property
    def evaluator(self) -> Evaluator:
        return self.bench.evaluator

    @property
    def choices(self) -> Choices:
        return self.bench.choices

    def score(self, source: ModelSource) -> Evaluation:
        """Load a model, score it on all tasks, release it."""
        scorer = self.bench.load(source)
        try:
            self._check_clusters(scorer)
            self._check_fair(scorer)
            evaluation = self.evaluator.evaluate(source.name, scorer)
        finally:
            scorer.close()
        if self.bench.options.check_batch_size:
            with interruptible(f"checking the batch size of {source.name}"):
                note = check_batch_size(source, self.bench)
            evaluation = replace(evaluation, notes=(*evaluation.notes, note))
        return evaluation

    def _check_clusters(self, scorer: Scorer) -> None:
        """Refuse a field that no document has before anything is scored, not after."""
        if self._before or not self.choices.clusters.declared:
            return
        with interruptible("building the requests"):
            names = self.evaluator.tasks.names
            fields = {task: self.evaluator.requests(task, scorer).fields for task in names}
        check_clusters(self.choices.clusters, fields)

    def _check_fair(self, scorer: Scorer) -> None:
        """Hold this model's tokenizer against the first one's, unless they are meant to differ.

        A setting such as add_bos_token is meant to change token ids, not what they stand for:
        different vocabularies have to be declared.
        """
        if "tokens" in self.choices.declared:
            return
        description = scorer.describe()
        for before in self._before[:1]:
            check_vocabularies(before, description)
        if "tokens" in self.choices.allow:
            self._before.append(description)
            return
        with interruptible("building the requests"):
            requests = self._sample(scorer)
            encoded = scorer.encode(requests)
        if self._before:
            check_encodings(requests, self._encoded, encoded)
        else:
            self._encoded = encoded
        self._before.append(description)

    def _sample(self, scorer: Scorer) -> list[Request]:
        """The first requests of every task; none where each model has prompts of its own."""
        if self.evaluator.chat:
            return []
        blocks = self.evaluator.first_blocks(scorer, _ENCODED_DOCUMENTS)
        return [request for block in blocks for request in block.requests]
