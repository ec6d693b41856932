"""Find the settings that make a candidate drift."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import isfinite, nan

import numpy as np

from evalguard.bisect.buildable import Buildable
from evalguard.bisect.conclusion import conclusion
from evalguard.bisect.effort import effort_for
from evalguard.bisect.events import Event, Listener
from evalguard.bisect.jitter import FEWEST
from evalguard.bisect.measurement import Measurements, OutOfBudget
from evalguard.bisect.oracle import Oracle
from evalguard.bisect.result import BisectResult
from evalguard.bisect.search import Search
from evalguard.bisect.yardstick import Unit, Yardstick
from evalguard.errors import UsageError
from evalguard.settings import Constraint

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
    may_be_chance: bool = True,
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
        may_be_chance: whether other documents might not show the drift, so that a culprit needs a
            paired test of its own. Not so of a limit on how far answers or distributions are from
            the base's: it is about these documents.

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
        )
    except KeyboardInterrupt:
        return BisectResult(status="stopped", drift_sigma=nan, unexplained_sigma=nan)
    effort = effort_for(len(names), documents=oracle.n_documents, thorough=thorough)
    search = Search(
        measured,
        buildable,
        margin=margin,
        effort=effort,
        rng=rng,
        listen=listen,
        may_be_chance=may_be_chance,
    )
    with suppress(KeyboardInterrupt, OutOfBudget):  # "stopped" until it ends by itself
        search.run()
    return conclusion(search)


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
