"""Sessions: which models are loaded when, each held against those before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from evalguard.pipeline.bench import Bench
from evalguard.pipeline.choices import Choices
from evalguard.pipeline.clusters import check_clusters
from evalguard.pipeline.evaluate import Evaluator
from evalguard.pipeline.fairness import TokenIds, check_encodings, check_vocabularies
from evalguard.pipeline.interruption import interruptible
from evalguard.pipeline.lazy_scorer import LazyScorer
from evalguard.pipeline.sources import ModelSource
from evalguard.scorer import ModelDescription, Request, Scorer

# Enough to see a tokenizer that differs, and encoded in no time.
_ENCODED_DOCUMENTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A model while it is loaded."""

    source: ModelSource
    scorer: Scorer

    @property
    def name(self) -> str:
        """The model's name in reports."""
        return self.source.name


@dataclass(slots=True)
class Sessions:
    """Loads the models of a comparison, one after the other or side by side.

    A model is refused as soon as it is loaded if it cannot be compared with the first one.
    """

    bench: Bench
    _before: list[ModelDescription] = field(default_factory=list)
    _encoded: list[TokenIds] = field(default_factory=list)

    @property
    def evaluator(self) -> Evaluator:
        """Scores whichever model is loaded."""
        return self.bench.evaluator

    @property
    def choices(self) -> Choices:
        """What was chosen for the run."""
        return self.bench.choices

    @contextmanager
    def opened(self, source: ModelSource) -> Iterator[Session]:
        """Load a model; release it in the end.

        Raises:
            EvaluationError: if it cannot be loaded; MisalignedRunsError if it reads other tokens.
            UsageError: for clusters that no document has.
        """
        scorer = self.bench.load(source)
        try:
            self._check_clusters(scorer)
            self._check_fair(scorer)
            yield Session(source=source, scorer=scorer)
            self._say_unloaded(source, scorer)
        finally:
            scorer.close()

    @contextmanager
    def together(self, sources: Sequence[ModelSource]) -> Iterator[tuple[Session, ...]]:
        """Load several models, so that all are there at the same time."""
        with ExitStack() as stack:
            yield tuple(stack.enter_context(self.opened(source)) for source in sources)

    def _say_unloaded(self, source: ModelSource, scorer: Scorer) -> None:
        if isinstance(scorer, LazyScorer) and scorer.from_cache and not scorer.is_loaded:
            kept = f"{source.name}: all {len(scorer.from_cache):,} blocks kept, not loaded"
            self.evaluator.progress.note(kept)

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
