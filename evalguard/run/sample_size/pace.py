"""How long models take to load and to score, and how many tokens they read."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from evalguard.core.reports.plan_report import ExpectedDrift, Role, TaskCost
from evalguard.core.scorer import ModelDescription, Request, Response, Scorer, ScoringPolicy
from evalguard.core.settings import Variant
from evalguard.run.loading.scorer_opening import open_scorer
from evalguard.run.options import CompareOptions
from evalguard.stats.finite_totals import expected_total

# What is slow only once (kernels, threads, caches of a processor) is over after these.
_WARM_REQUESTS = 4


@dataclass(slots=True)
class ModelTiming:
    """What one model did for one task. ``hidden`` if any response did not tell its tokens."""

    seconds: float = 0.0
    tokens: dict[int, int] = field(default_factory=dict)
    hidden: bool = False

    def add(self, seconds: float, requests: Sequence[Request], answers: Sequence[Response]) -> None:
        """Count a scored block."""
        self.seconds += seconds
        for request, response in zip(requests, answers, strict=True):
            self.tokens[request.doc_id] = self.tokens.get(request.doc_id, 0) + response.n_tokens
            self.hidden = self.hidden or response.n_tokens == 0

    def cost(self, task: str, role: Role, n: int, *, confidence: float) -> TaskCost:
        """What n documents would need, of which these are a random sample."""
        tokens = np.array(list(self.tokens.values()), dtype=np.float64)
        measured = tokens if not self.hidden else np.ones_like(tokens)
        amount, low, high = expected_total(measured, n, confidence=confidence)
        per_unit = self.seconds / float(np.sum(measured))
        return TaskCost(
            task=task,
            role=role,
            pilot_documents=tokens.shape[0],
            pilot_seconds=self.seconds,
            pilot_tokens=None if self.hidden else int(np.sum(tokens)),
            n=n,
            seconds=ExpectedDrift(
                amount=amount * per_unit, low=low * per_unit, high=high * per_unit
            ),
            tokens=None if self.hidden else ExpectedDrift(amount=amount, low=low, high=high),
        )


class TimedScorer:
    """A scorer that measures its own pace, after a few requests to warm up for each kind."""

    def __init__(self, scorer: Scorer, clock: Callable[[], float] = time.perf_counter) -> None:
        self._scorer = scorer
        self._clock = clock
        self._warm: set[str] = set()
        self.tasks: dict[str, ModelTiming] = defaultdict(ModelTiming)

    def describe(self) -> ModelDescription:
        """Return what was loaded."""
        return self._scorer.describe()

    def encode(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """Return the token ids each request would feed."""
        return self._scorer.encode(requests)

    def score(self, requests: Sequence[Request]) -> list[Response]:
        """Score a block of requests and take the time."""
        kind = requests[0].kind
        if kind not in self._warm:
            self._warm.add(kind)
            self._scorer.score(requests[:_WARM_REQUESTS])
        start = self._clock()
        answers = self._scorer.score(requests)
        self.tasks[requests[0].task].add(self._clock() - start, requests, answers)
        return answers

    def render_chat(
        self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool
    ) -> str:
        """Apply the model's chat template."""
        return self._scorer.render_chat(messages, add_generation_prompt)

    def close(self) -> None:
        """Release the model."""
        self._scorer.close()


@dataclass(slots=True)
class ScorerStopwatch:
    """Opens scorers, in the order they are asked for, and keeps what they measured."""

    clock: Callable[[], float] = time.perf_counter
    load_seconds: list[float] = field(default_factory=list)
    scorers: list[TimedScorer] = field(default_factory=list)

    def open(
        self, variant: Variant, policy: ScoringPolicy, options: CompareOptions, *, cache_dir: Path
    ) -> Scorer:
        """Load a variant where it has to run, and take the time of that and all it will score."""
        start = self.clock()
        scorer = TimedScorer(open_scorer(variant, policy, options, cache_dir=cache_dir), self.clock)
        self.load_seconds.append(self.clock() - start)
        self.scorers.append(scorer)
        return scorer
