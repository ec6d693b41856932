"""How many documents would decide what these could not."""

from __future__ import annotations

import math

from evalguard.stats.estimate import Estimate
from evalguard.stats.probability import normal_critical


def documents_needed(estimate: Estimate, *, n: int, tolerance: float) -> int | None:
    """Documents at which the interval would fall below ``tolerance`` or above 0.

    ``estimate`` is the drift over n documents and ``tolerance`` the drift, in the same unit, that
    the margin allows **now**: margin * SE_base at the present n. It is held fixed, because that is
    the amount of damage the user accepts today; SE_base itself shrinks as 1 / sqrt(n), so that the
    same number of sigmas over more documents would be a stricter demand, one which more documents
    do not make easier to meet. With point and scatter per document as they are, the half-width
    shrinks as 1 / sqrt(n): the need is the smaller n of
    z stderr sqrt(n / n') < tolerance - point (shown harmless) and < point (shown real), plus
    z^2 / 2 for the t quantile of small samples (Guenther, The American Statistician 35, 1981).

    Returns None where no number of documents would do (the point is itself at 0 and at the
    tolerance, or the numbers are infinite).
    """
    gap = max(tolerance - estimate.point, estimate.point)
    if not (gap > 0.0 and math.isfinite(gap) and math.isfinite(estimate.stderr)):
        return None
    z = normal_critical(estimate.confidence)
    ratio = z * estimate.stderr / gap
    needed = n * ratio * ratio + z * z / 2.0
    return max(n + 1, math.ceil(needed)) if math.isfinite(needed) else None
