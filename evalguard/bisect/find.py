"""Find the settings that make a candidate drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import isfinite, log, log2, nan

import numpy as np

from evalguard.bisect.buildable import Buildable
from evalguard.bisect.conclusion import conclude_search
from evalguard.bisect.culprit_search import CulpritSearch
from evalguard.bisect.effort import effort_for
from evalguard.bisect.events import Event, Listener
from evalguard.bisect.jitter import FEWEST
from evalguard.bisect.measurement import Measurements, OutOfBudget
from evalguard.bisect.oracle import Floats, Oracle
from evalguard.bisect.search_result import BisectResult
from evalguard.bisect.yardstick import Unit, Yardstick
from evalguard.core.settings import Constraint
from evalguard.errors import UsageError

_SIDES = ("candidate", "reference")


def find_culprits(
    oracle: Oracle,
    settings: Sequence[str],
    *,
    margin: float,
    yardstick: float,
    seed: int,
    budget: float | None = None,
    constraints: Sequence[Constraint] = (),
    thorough: bool = False,
    on_event: Listener | None = None,
    unit: Unit | None = None,
    level: float | None = 0.025,
    counted: bool = False,
    document_costs: tuple[Floats, Floats] | None = None,
    base_scores: Floats | None = None,
    prior: Mapping[str, float] | None = None,
) -> BisectResult:
    """Name the settings that make the drift between base and candidate, and prove it.

    The same arguments and the same answers of the oracle give the same result.

    Args:
        oracle: scores documents under an assignment; see ``Oracle``, and ``BlockOracle`` and
            ``ParallelOracle`` for what it may offer.
        settings: names of the settings that differ between base and candidate.
        margin: drift that is tolerated, in units of ``yardstick``.
        yardstick: the base's standard error, in units of the scores; drift is
            mean(base - candidate) / yardstick.
        seed: of all random choices.
        budget: full evaluations that may be spent, base and candidate excepted; None: no limit
            but the search's own.
        constraints: assignments that cannot be built, and are not tried; their values are
            "candidate" and "reference". Base and candidate are taken to be buildable.
        thorough: be surer, and spend more; for effects of 2 to 4 standard errors of the jitter.
        on_event: called with every event, in order.
        unit: from mean drift in yardsticks to what is reported, monotone; None: as it is.
        level: one-sided level of the gate's, at which a culprit needs a paired test of its own
            (Holm over the settings), because other documents might not show the drift. None of a
            limit on how far answers or distributions are from the base's: it is about these
            documents.
        counted: documents change or do not, as figures of answers that are written greedily: a
            culprit is held to ``level`` by closed testing in place of Holm's correction
            (``counted_p_values``), and what so few documents show that nobody could be named is
            not searched for long.
        document_costs: what each document costs under the base and under the candidate, (n,) each,
            in any unit (tokens); a text that loops costs many times one that ends. None: all alike.
            What is measured next follows from it; budget and ``cost`` are in documents.
        base_scores: of the base, shape (n,), where the model with every setting at reference need
            not be it. What lies between the two uses up the margin: the settings may do the rest.
        prior: setting -> how likely it is to be a culprit beside the others (a trace's ratio);
            1 where it is not named. It decides what is measured first, and so the cost; what
            names a culprit, and what clears a setting, is the same evidence as without it.

    Raises:
        UsageError: for arguments that make no sense, or fewer than 8 documents.
        Untestable: base or candidate themselves cannot be measured.
    """
    names = tuple(settings)
    _check(names, margin, yardstick, budget, constraints)
    if oracle.n_documents < FEWEST:
        raise UsageError(
            f"a search needs {FEWEST} documents or more to see how far they scatter, "
            f"got {oracle.n_documents}"
        )
    rng = np.random.default_rng(seed)
    listen = on_event or _silent
    buildable = Buildable(names, constraints)
    try:
        measured = Measurements(
            oracle,
            names,
            yardstick=Yardstick(size=yardstick, unit=unit),
            budget=budget,
            buildable=buildable,
            rng=rng,
            listen=listen,
            counted=counted,
            document_costs=document_costs,
        )
    except KeyboardInterrupt:
        return BisectResult(status="stopped", drift_sigma=nan, unexplained_sigma=nan)
    if base_scores is not None:
        outside = float(np.mean(base_scores) - measured.base_mean) / yardstick
        margin = remaining_margin(margin, outside)
    effort = effort_for(len(names), documents=oracle.n_documents, thorough=thorough)
    search = CulpritSearch(
        measured,
        buildable,
        margin=margin,
        effort=effort,
        rng=rng,
        listen=listen,
        level=level,
        counted=counted,
        weights=prior_weights(names, prior),
    )
    if measured.unmoved:  # what single settings do is undone by others: nobody is to blame
        search.status = "not_reproduced"
        return conclude_search(search)
    with suppress(KeyboardInterrupt, OutOfBudget):  # "stopped" until it ends by itself
        search.run()
    return conclude_search(search)


_MOST_WEIGHT = 30.0  # a trace may be a thousand times beyond its floor, and yet cost nothing


def prior_weights(
    names: tuple[str, ...], prior: Mapping[str, float] | None
) -> tuple[float, ...] | None:
    """Weights of the settings, one each; None where nothing is known of any.

    Where the largest is beyond what is believed, all are drawn nearer to 1 on a log scale: their
    order stays.
    """
    if not prior:
        return None
    weights = np.array([float(prior.get(name, 1.0)) for name in names])
    if not np.all(weights > 0.0):  # NaN too
        raise UsageError(f"a prior is above 0 for every setting, got {dict(prior)}")
    logs, most = np.log(weights), log(_MOST_WEIGHT)
    finite = logs[np.isfinite(logs)]
    logs = np.minimum(logs, max(float(finite.max(initial=most)), most))
    logs *= min(1.0, most / max(float(np.abs(logs).max()), most))
    return None if np.all(logs == logs[0]) else tuple(np.exp(logs).tolist())


_LEAST_MARGIN = 0.25  # of the margin: what is left of it to be searched for


def remaining_margin(margin: float, outside: float) -> float:
    """What settings may do together where the drift outside them counts too.

    Args:
        outside: drift of the model with every setting at reference, in the unit of ``margin``. If
            it is beyond the margin, no setting can bring the candidate inside it, and if it is
            below 0, what it hides is not to be held against the settings: then all is left.
    """
    if not 0.0 < outside < margin:
        return margin
    return max(margin - outside, _LEAST_MARGIN * margin)


def _silent(event: Event) -> None:
    """Listen to nothing."""


def _check(
    names: tuple[str, ...],
    margin: float,
    yardstick: float,
    budget: float | None,
    constraints: Sequence[Constraint],
) -> None:
    if not names or len(set(names)) < len(names):
        raise UsageError(f"a search needs settings with different names, got {list(names)}")
    for what, value in (("margin", margin), ("yardstick", yardstick)):
        if not (isfinite(value) and value > 0.0):
            raise UsageError(f"the {what} of a search must be above 0, got {value}")
    if budget is not None and not budget >= 0.0:
        raise UsageError(f"the budget of a search is in full evaluations, got {budget}")
    for rule in constraints:
        for name, side in (*rule.when.items(), *rule.then.items()):
            if name not in names or side not in _SIDES:
                raise UsageError(
                    f"a constraint of a search names {name}: {side!r}",
                    hint=f"settings: {', '.join(names)}; values: candidate, reference",
                )


def expected_evaluations(settings: int, culprits: int) -> float:
    """Full evaluations for so many additive culprits among so many settings.

    1 + k (1 + 0.4 log2 n), base and candidate not counted: what the search keeps below on average
    for effects of 5 standard errors of the jitter or more (benchmarks/bisect_simulation.py). A
    single setting needs nothing but its own measurement, which is the candidate's.
    """
    return 1.0 + culprits * (1.0 + 0.4 * log2(settings)) if settings > 1 else 0.0
