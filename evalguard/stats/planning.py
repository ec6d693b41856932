"""How many documents would decide what these could not."""

from __future__ import annotations

import math

from evalguard.stats.estimate import Estimate
from evalguard.stats.probability import normal_critical


def documents_needed(estimate: Estimate, *, n: int, tolerance: float) -> int | None:
    """Documents after which, at the same margin, the drift would be known as real or harmless.

    Point and scatter per document are taken to stay as they are. Over n' documents both standard
    errors shrink by sqrt(n / n'), the base's too, and the drift that a margin in sigmas tolerates
    shrinks with it: relative to it the interval stays as wide as it is, while the point moves away
    from 0. The rule decides as soon as the interval leaves 0 (the drift is real), or, for a point
    below 0, as soon as it ends below the tolerance:

        point > 0:  sqrt(n' / n) > ratio = z stderr / point
        point < 0:  sqrt(n' / n) > ratio = (z stderr - tolerance) / |point|

    The t quantile of small samples, z + (z^3 + z) / 4 df, costs a few documents more: to first
    order (z^2 + 1) / 2 times the ratio of the interval to what of it must shrink.

    Args:
        estimate: the drift over n documents, undecided.
        tolerance: margin * SE_base at the present n, in the drift's unit.

    Returns:
        The number, above n; None where no number of documents would do: a point of 0 stays 0
        however many documents show it, in an interval that stays wider than the margin.
    """
    z = normal_critical(estimate.confidence)
    point, half = estimate.point, z * estimate.stderr
    if point == 0.0 or not (math.isfinite(point) and math.isfinite(half)):
        return None
    width = half / abs(point)
    ratio = max(1.0, width if point > 0.0 else (half - tolerance) / abs(point))
    needed = n * (ratio * ratio) + (z * z + 1.0) / 2.0 * width / ratio
    return max(n + 1, math.ceil(needed)) if math.isfinite(needed) else None
