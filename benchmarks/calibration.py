"""Whether evalguard's intervals hold the truth, and its tests reject, as often as they say.

    python -m benchmarks.calibration --output benchmarks/results/calibration.md

Simulates documents whose truth is known and compares them through evalguard's own path (``pair``,
``compare_scores``, the gate). ``--only 0-1 --repetitions 200`` for a quick look at one method;
``--processes 2`` gives the same numbers on two cores, in about 20 minutes (40 of processor time).
Early stopping has a benchmark of its own, ``benchmarks.stopping``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.distributions import distribution
from benchmarks.families import false_alarms, holm
from benchmarks.groups import groups
from benchmarks.methods import METHODS
from benchmarks.outcomes import Method
from benchmarks.output import deliver
from benchmarks.tally import (
    FEWEST,
    HIGHEST,
    LEVELS,
    LOWEST,
    SEED,
    Share,
    Tally,
    seed_of,
    tally,
)

REPETITIONS = 500
ALL_METHODS: dict[str, Method] = {
    **METHODS,
    "distribution": distribution,
    "holm": holm,
    "groups": groups,
}
FALSE_ALARMS = "false-alarms"


def main() -> None:
    """Simulate, and print the tables or write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="write the tables there")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help="of each row")
    parser.add_argument("--only", nargs="*", default=[*ALL_METHODS, FALSE_ALARMS], metavar="METHOD",
                        help=f"some of {', '.join([*ALL_METHODS, FALSE_ALARMS])}")  # fmt: skip
    parser.add_argument("--processes", type=int, default=1, help="cores to use")
    options = parser.parse_args()
    unknown = set(options.only) - {*ALL_METHODS, FALSE_ALARMS}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    tallies = measured(options.only, options.repetitions, options.processes)
    lines = [*report(tallies, options.repetitions)]
    if FALSE_ALARMS in options.only:
        lines += alarm_table(options.repetitions)
    deliver(lines, options.output)


def measured(methods: list[str], repetitions: int, processes: int) -> list[Tally]:
    """Tally every cell of these methods, in order."""
    jobs = [
        (name, number, repetitions)
        for name in methods
        if name in ALL_METHODS
        for number, _ in enumerate(ALL_METHODS[name]())
    ]
    if processes == 1:
        return [_measure(*job) for job in jobs]
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(_measure, *zip(*jobs, strict=True)))


def _measure(name: str, number: int, repetitions: int) -> Tally:
    return tally(name, list(ALL_METHODS[name]())[number], repetitions)


def report(tallies: list[Tally], repetitions: int) -> Iterator[str]:
    """Yield the tables in Markdown."""
    yield "# Calibration of intervals and tests\n"
    yield "`python -m benchmarks.calibration --output benchmarks/results/calibration.md`\n"
    yield (
        f"{repetitions:,} repetitions a row, seed {SEED}; fewer where the table says so. All "
        "numbers in percent, each with its Monte Carlo standard error. *holds*: 95% intervals of "
        "the drift that hold the true one; *plain t holds*: the same of Student's t, where skewed "
        "or very unequal documents ask for more care; *below*, *above*: that lie wholly on that "
        "side of it; "
        "*caveat*: reports with a caveat about the interval. The tests' columns are rejections, "
        f"one-sided at {LEVELS[0]} / {LEVELS[1]}: errors where the drift is *none*, else power "
        "(the drift is 2.49 true standard errors, which a z-test would see in 80% and 70% of "
        "samples, or what the row says)."
    )
    yield (
        f"\n**Bold**: from {FEWEST} documents on, coverage below {100 * LOWEST:g}; a size above "
        "1.1 times its level and two Monte Carlo errors. *Italic*: coverage above "
        f"{100 * HIGHEST:g}, wider than promised. Sign flips and Wilcoxon's test take differences "
        "as symmetric under the null; where the row's are not, their rejections are shown "
        "unmarked, as are those of McNemar's test over clusters."
    )
    marked = sum(t.too_narrow(t.holds) or any(map(_large(t), t.rejected)) for t in tallies)
    contradictions = sum(t.contradictions for t in tallies)
    yield (
        f"\n{len(tallies)} rows, {marked} with a bold figure. Repetitions in which interval, "
        f'p-value and "real" contradicted each other: {contradictions}.'
    )
    for name in dict.fromkeys(t.method for t in tallies):
        yield from _table(name, [t for t in tallies if t.method == name])


def _large(of: Tally):  # type: ignore[no-untyped-def]
    return lambda test: any(of.too_large(test, level) for level in range(len(LEVELS)))


def _table(name: str, tallies: list[Tally]) -> Iterator[str]:
    tests = list(dict.fromkeys(test for t in tallies for test in t.rejected))
    intervals = ["holds", "below", "above", "caveat"] if tallies[0].holds else []
    plain = any(t.plain not in (None, t.holds) for t in tallies)
    if plain:
        intervals.insert(1, "plain t holds")
    columns = ["documents' differences", "n", "drift", *intervals, *tests]
    yield f"\n## {name}\n"
    summary = (ALL_METHODS[name].__doc__ or "").partition("\n")[0]
    most = tallies[0].repetitions
    large = min(tallies, key=lambda t: t.repetitions)
    fewer = f", {large.repetitions:,} of {large.n:,} documents" if large.repetitions < most else ""
    yield f"{summary} {most:,} repetitions a row{fewer}.\n"
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)
    for of in tallies:
        row = [of.data, f"{of.n:,}", "none" if of.null else "yes"]
        if of.holds and of.below and of.above:
            row.append(_coverage(of, of.holds))
            if plain:
                row.append(_coverage(of, of.plain) if of.plain else "")
            row += [_text(of.below), _text(of.above), f"{100 * of.flagged.value:.0f}"]
        row += [_rejections(of, test) if test in of.rejected else "" for test in tests]
        yield f"| {' | '.join(row)} |"


def _coverage(of: Tally, holds: Share) -> str:
    if of.too_narrow(holds):
        return f"**{_text(holds)}**"
    return f"*{_text(holds)}*" if of.too_wide(holds) else _text(holds)


def _rejections(of: Tally, test: str) -> str:
    texts = []
    for level, share in enumerate(of.rejected[test]):
        text = _text(share)
        texts.append(f"**{text}**" if of.too_large(test, level) else text)
    return " / ".join(texts)


def _text(share: Share) -> str:
    return f"{100 * share.value:.1f}±{100 * share.error:.1f}"


def alarm_table(repetitions: int) -> Iterator[str]:
    """Yield the table of false alarms in Markdown."""
    yield f"\n## {FALSE_ALARMS}\n"
    yield (
        "An unchanged candidate with scatter: the mean of the false-alarm probability that is "
        f"printed for a margin of 1, and how often it is crossed. {repetitions:,} repetitions a "
        "row.\n"
    )
    yield "| documents | n | printed | crosses the margin |"
    yield "|---|---|---|---|"
    for name, n, simulate in false_alarms():
        rng = np.random.default_rng([SEED, seed_of(name), n])
        printed, crossed = np.array([simulate(rng) for _ in range(repetitions)]).T
        share = Share(value=float(crossed.mean()), of=repetitions)
        yield f"| {name} | {n:,} | {100 * printed.mean():.1f} | {_text(share)} |"


if __name__ == "__main__":
    main()
