"""Looking every night: how often a year of looks tells of a change point that is none, and how
soon it tells of one that is there.

    python -m benchmarks.nightly_looks [--runs 100] [--out FILE]

Every series is looked at every night with what is known by then, as ``evalguard nightly`` does: the
latest 120 nights, at its level for a year of looks. A series ends with the first change point that
is told of. Nothing but the scan runs, so that hundreds of years take minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.night_series import OUTSIDE, QUIET, Make, Series, normal, stepped
from evalguard.nights.change_points import change_points
from evalguard.nights.night_changes import MOST_NIGHTS
from evalguard.nights.night_report import ALPHA, LOOKS

YEAR, FIRST_LOOK = 365, 6
PER_NIGHT, PER_YEAR = ALPHA, ALPHA / LOOKS


@dataclass(frozen=True, slots=True)
class Alarm:
    """The first change point told of: nights known by then, where it is put, and its range."""

    nights: int
    position: int
    earliest: int
    latest: int


def first_alarm(
    series: Series, level: float, *, after: int = 0, first: int = FIRST_LOOK
) -> Alarm | None:
    """Look every night, from ``first`` nights on, at change points that lie after ``after``."""
    values, errors = series
    for nights in range(first, values.shape[0] + 1):
        start = max(0, nights - MOST_NIGHTS)
        scan = change_points(values[start:nights], errors[start:nights], alpha=level)
        for point in scan.points:
            if point.latest + start >= after:
                places = (point.position, point.earliest, point.latest)
                return Alarm(nights, *(place + start for place in places))
    return None


def share(hits: int, runs: int) -> str:
    """A share with its Monte Carlo standard error."""
    p = hits / runs
    return f"{p:.0%} ± {max((p * (1 - p) / runs) ** 0.5, 0.5 / runs):.1%}"


def quiet_row(name: str, make: Make, runs: int, few: int) -> str:
    """A row of the table of false alarms."""
    strict = [first_alarm(make(_rng(1, run), YEAR), PER_YEAR) for run in range(runs)]
    loose = [first_alarm(make(_rng(1, run), YEAR), PER_NIGHT) for run in range(few)]
    alarms = sum(alarm is not None for alarm in strict)
    years = sum(YEAR if alarm is None else alarm.nights for alarm in strict) / YEAR
    rate = f"{alarms / years:.2f} ± {max(alarms, 0.25) ** 0.5 / years:.2f}"
    often = sum(alarm is not None for alarm in loose)
    return f"| {name} | {share(alarms, runs)} | {rate} | {share(often, few)} |"


def family_row(metrics: int, runs: int) -> str:
    """A pair of many gated metrics: any false alarm among them in a year."""
    hits = 0
    for run in range(runs):
        rng = _rng(2, run)
        shared = normal(rng, YEAR, spread=0.2)[0]  # a night moves all metrics of a model
        for _ in range(metrics):
            values, errors = normal(rng, YEAR, spread=0.2)
            if first_alarm((values + shared, errors), PER_YEAR / metrics) is not None:
                hits += 1
                break
    return f"| {metrics} gated metrics of a pair, alike by half | {share(hits, runs)} | | |"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A step to be found; ``at`` is the first night of the new level, counted from 0."""

    step: float
    spread: float
    at: int
    nights: int
    metrics: int = 1


def step_row(planted: Planted, runs: int) -> str:
    """How soon and where a step is told of."""
    delays, off, within = [], [], 0
    for run in range(runs):
        plain = normal(_rng(3, run), planted.nights, spread=planted.spread)
        series = stepped(plain, {planted.at: planted.step})
        level = PER_YEAR / planted.metrics
        alarm = first_alarm(series, level, first=planted.at + 1)
        delays.append(np.inf if alarm is None else alarm.nights - planted.at)
        if alarm is not None:
            off.append(abs(alarm.position - planted.at))
            within += alarm.earliest <= planted.at <= alarm.latest
    found = [delay for delay in delays if np.isfinite(delay)]
    cells = (
        f"{planted.step:g}",
        f"{planted.spread:g}",
        f"{planted.at + 1} of {planted.nights}",
        f"{planted.metrics}",
        share(len(found), runs),
        _nights(np.quantile(delays, [0.1, 0.5, 0.9], method="inverted_cdf")),
        f"{np.mean(off):.1f}" if off else "",
        share(within, len(found)) if found else "",
    )
    return f"| {' | '.join(cells)} |"


def _nights(quantiles: Sequence[float]) -> str:
    return ", ".join(f"{night:.0f}" if np.isfinite(night) else "-" for night in quantiles)


def second_row(name: str, steps: dict[int, float], spread: float, runs: int) -> str:
    """Two steps: how soon the second is told of beside the first."""
    second = max(steps)
    delays = []
    for run in range(runs):
        series = stepped(normal(_rng(4, run), 90, spread=spread), steps)
        alarm = first_alarm(series, PER_YEAR, after=second - 1, first=second + 3)
        delays.append(np.inf if alarm is None else alarm.nights - second)
    found = sum(np.isfinite(delay) for delay in delays)
    quantiles = np.quantile(delays, [0.1, 0.5, 0.9], method="inverted_cdf")
    return f"| {name} | {spread:g} | {share(int(found), runs)} | {_nights(quantiles)} |"


def _rng(*key: int) -> np.random.Generator:
    return np.random.default_rng([20_261_121, *key])


STEPS = (
    Planted(step=1.0, spread=0.3, at=30, nights=60),
    Planted(step=2.0, spread=0.3, at=30, nights=60),
    Planted(step=1.0, spread=0.3, at=30, nights=60, metrics=10),
    Planted(step=2.0, spread=0.3, at=30, nights=60, metrics=10),
    Planted(step=1.0, spread=0.3, at=10, nights=60),
    Planted(step=2.0, spread=1.0, at=30, nights=60),
    Planted(step=1.0, spread=1.0, at=30, nights=60),
    Planted(step=1.0, spread=1.0, at=90, nights=180),
)
SECOND = {
    "1 sigma on night 31, 1 more on night 46": {30: 1.0, 45: 1.0},
    "1 sigma on night 31, back on night 41": {30: 1.0, 40: -1.0},
    "2 sigma on night 31, back on night 36": {30: 2.0, 35: -2.0},
}


def page(runs: int) -> Iterator[str]:
    """The lines of the page."""
    yield f"""# Looking every night

`python -m benchmarks.nightly_looks --runs {runs}`. Every series is looked at every night with \
what is known by then, as `evalguard nightly` does it: the latest {MOST_NIGHTS} nights, one trend \
at the level {ALPHA:g} / {LOOKS}. ± is the Monte Carlo standard error.

## A year without a step
The promise: the chance of any false change point in a year of looks is at most {ALPHA:.0%}.

| nights | years with any false alarm | false alarms a series-year | the same, each look at \
{ALPHA:.0%} by itself |
|---|---|---|---|"""
    few = max(runs // 4, 1)
    for name, make in QUIET.items():
        yield quiet_row(name, make, runs, few)
    yield family_row(10, few)
    yield """
Outside the promise, which is for nights that vary alike around levels; that they are alike with \
the next is estimated and counted:

| nights | years with any | a series-year | each look by itself |
|---|---|---|---|"""
    for name, make in OUTSIDE.items():
        yield quiet_row(name, make, few, few)
    yield """
## A step
Told of after so many nights of the new level (10%, 50%, 90% of the series; -: not by the last \
night), how many nights off it was put then, and whether its range held the true night.

| step, sigma | nights vary by | first night | gated metrics | told of | nights until then \
| nights off | within its range |
|---|---|---|---|---|---|---|---|"""
    for planted in STEPS:
        yield step_row(planted, max(runs // 2, 1))
    yield """
## Two steps
| steps | nights vary by | the second told of within 90 nights | nights until then |
|---|---|---|---|"""
    for name, steps in SECOND.items():
        yield second_row(name, steps, 0.3, few)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/nightly_looks.md"))
    given = parser.parse_args()
    lines = []
    for line in page(given.runs):
        print(line, flush=True)
        lines.append(line)
    given.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
