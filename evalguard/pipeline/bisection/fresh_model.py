"""FreshModel: every assignment is loaded anew, in a worker process of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evalguard.pipeline.open_scorer import open_scorer
from evalguard.pipeline.options import CompareOptions
from evalguard.pipeline.sources import ModelSource
from evalguard.scorer import Scorer, ScoringPolicy


@dataclass(slots=True)
class FreshModel:
    """A model that becomes another one by being loaded again.

    Args:
        policy: how it scores, whatever it is.
        options: of the comparison; probes run in workers, whatever they say of that.
    """

    policy: ScoringPolicy
    options: CompareOptions
    cache_dir: Path
    _source: ModelSource | None = None
    _scorer: Scorer | None = None

    def at(self, source: ModelSource) -> Scorer:
        """Be this model.

        Raises:
            EvalguardError: as loading does.
        """
        if self._scorer is None or self._source != source:
            self.close()
            self._scorer = open_scorer(
                source.variant, self.policy, self.options, cache_dir=self.cache_dir
            )
            self._source = source
        return self._scorer

    def close(self) -> None:
        """Release it. May be called twice."""
        scorer, self._scorer, self._source = self._scorer, None, None
        if scorer is not None:
            scorer.close()
