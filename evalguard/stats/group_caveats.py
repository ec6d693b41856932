"""What stands beside the aggregate of a group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evalguard.stats.caveats import skewed_differences
from evalguard.stats.contributions import Contributions
from evalguard.stats.drift import Drift
from evalguard.stats.skewness import skewness


def how_made(times: Sequence[int], weight_by_size: bool) -> str:
    """Say how subtasks, each counted so many times, were averaged."""
    how = "weighted by their documents" if weight_by_size else "each counting alike"
    repeated = sum(count > 1 for count in times)
    more = f" ({repeated} of them more than once)" if repeated else ""
    noun = "subtask" if len(times) == 1 else "subtasks"
    return (
        f"aggregate of {len(times)} {noun}, {how}{more}, as lm-eval takes it; standard error of "
        "the drift stratified over subtasks"
    )


def sharing(subtasks: int) -> tuple[str, ...]:
    """Say that so many subtasks have documents in common, if any."""
    if not subtasks:
        return ()
    return (
        f"{subtasks} of the subtasks share documents: the standard error of the drift takes each "
        "shared document as one, the base's (lm-eval's) takes them as independent",
    )


def skewed(parts: Contributions | None, drift: Drift) -> tuple[str, ...]:
    """Say whether documents are too few and too lopsided for a t interval."""
    if parts is None:
        return ()
    residuals = np.concatenate([part.residuals for part in parts.parts])
    found = skewed_differences(skewness(residuals, None), residuals.shape[0], "documents", drift)
    return tuple(found)
