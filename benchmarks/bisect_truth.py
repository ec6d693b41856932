"""What settings really do: every assignment asked for is loaded and scored on all documents.

It knows nothing of bisection, caches or workers: a model is loaded in this process, scored, and
let go.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.sampled_models import TASK, Sampled
from evalguard.core.scorer import Request, ScoringPolicy
from evalguard.core.settings import Setting, Variant
from evalguard.engine.loading.load_scorer import load_scorer

Floats = NDArray[np.float64]
_POLICY = ScoringPolicy(batch_size=64, device="cpu", threads=1)


class Truth:
    """An oracle (``evalguard.core.question.Oracle``) over a sampled model, and its sigma.

    ``base``: scores with all settings at reference, if they are known. ``seconds``: of one thread,
    that scoring all documents took on average, loading included.
    """

    def __init__(
        self, place: Sampled, settings: tuple[Setting, ...], *, base: Floats | None = None
    ) -> None:
        self.settings = tuple(setting.name for setting in settings)
        self._variant = Variant(
            name="candidate", model="hf", model_args=model_args(place), settings=settings
        )
        self._cache = place.model.parent / "truth-cache"
        self._asked = requests(place.tasks)
        self._scores: dict[frozenset[str], Floats] = {}
        self._spent: list[float] = []
        if base is not None:
            self._scores[frozenset()] = base
        base = self.scores(frozenset())
        self.n_documents = base.size
        self.yardstick = float(base.std(ddof=1)) / base.size**0.5

    @property
    def seconds(self) -> float:
        return float(np.mean(self._spent))

    def measure(self, candidate_settings: frozenset[str], documents: NDArray[np.intp]) -> Floats:
        """As ``evalguard.core.question.Oracle`` says."""
        return self.scores(candidate_settings)[documents]

    def sigma(self, candidate_settings: frozenset[str]) -> float:
        """Drift of the perplexity in the base's standard errors, as evalguard reports it."""
        return self.reported(self.drift(candidate_settings))

    def drift(self, candidate_settings: frozenset[str]) -> float:
        """Drift of the mean log-likelihood, in its standard errors."""
        lost = self.scores(frozenset()) - self.scores(candidate_settings)
        return float(lost.mean()) / self.yardstick

    def reported(self, drift: float) -> float:
        """From yardsticks to the sigma of a perplexity."""
        return float(np.expm1(drift * self.yardstick)) / self.yardstick

    def margin(self, sigma: float) -> float:
        """What ``reported`` undoes."""
        return float(np.log1p(sigma * self.yardstick)) / self.yardstick

    def scores(self, candidate_settings: frozenset[str]) -> Floats:
        """Log-likelihood of every document; (n_documents,)."""
        if candidate_settings not in self._scores:
            start = time.process_time()
            values = {s.name: s.reference for s in self._variant.settings}
            values |= {
                s.name: s.candidate for s in self._variant.settings if s.name in candidate_settings
            }
            scorer = load_scorer(self._variant.assigned(values), _POLICY, cache_dir=self._cache)
            scorer.describe()
            told = [answer.loglikelihood for answer in scorer.score(self._asked)]
            self._scores[candidate_settings] = np.array(told, dtype=np.float64)
            self._spent.append(time.process_time() - start)
        return self._scores[candidate_settings]


def model_args(place: Sampled) -> dict[str, str]:
    """How the base is loaded."""
    return {"pretrained": str(place.model), "dtype": "float32", "attn_implementation": "eager"}


def requests(tasks: Path) -> list[Request]:
    """What the task asks about its documents."""
    lines = (tasks / "documents.jsonl").read_text(encoding="utf-8").splitlines()
    documents = [json.loads(line) for line in lines]
    return [
        Request(
            task=TASK, doc_id=number, index=0, kind="loglikelihood",
            arguments=(document["context"], document["target"]),
        )
        for number, document in enumerate(documents)
    ]  # fmt: skip
