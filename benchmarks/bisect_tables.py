"""The tables of the bisection benchmark."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from benchmarks.bisect_counts import Counts, Key
from benchmarks.bisect_outcomes import OTHERS, OURS
from benchmarks.bisect_planting import CASES, DOCUMENTS

_SEARCHES = (*OTHERS, *OURS)


def report(found: Mapping[Key, Counts], seed: int) -> Iterator[str]:
    """Yield the tables of all cells that are there."""
    yield "# Searches for guilty settings, on planted drift\n"
    yield from _introduction(found, seed)
    for n in sorted({n for _, n, _, _ in found}):
        for effect in sorted({effect for _, its_n, effect, _ in found if its_n == n}):
            yield from _table(found, n, effect)
    hours = sum(counts.seconds for counts in found.values()) / 3600.0
    yield f"\n{hours:.1f} hours of one core."


def _introduction(found: Mapping[Key, Counts], seed: int) -> Iterator[str]:
    runs = sorted({counts.runs for counts in found.values()})
    most = runs[-1]
    share, rare = (100.0 * math.sqrt(p * (1.0 - p) / most) for p in (0.95, 0.02))
    yield "`python -m benchmarks.bisect_simulation --cells FILE --minutes M --output FILE`\n"
    yield (
        f"{most} plantings a cell where nothing else is said, a third each with effects that are "
        f"uniform over {DOCUMENTS:,} documents, on 5% of them, and lognormal over them; seed "
        f"{seed}, on which nothing was tuned. Effects in standard errors of the jitter of one "
        "assignment over all documents; jitter is normal and each assignment's own. The margin is "
        "half of an effect. A cell: exact set % / valid fix (no innocent named, drift left inside "
        "the margin) % / an innocent named % / mean full evaluations without base and candidate, "
        "0.05 for each launched assignment, with Monte Carlo error. Monte Carlo error of 95%: "
        f"{share:.1f}; of 2%: {rare:.1f}. Saturating: alone each culprit does one effect, beside "
        "others 50 to 80% or 110 to 140% of what the one before it added. Diffuse: every setting "
        "does 0.5 to 1.5 of the mean part of two effects; exact is to say so and to name nobody. "
        "Jitter only: no setting does anything; exact is to name nobody. Crash rules: two random "
        "ones, not declared: a at candidate needs b at candidate. Only candidates that fail the "
        "gate are searched, but for the masked pair. Given blocks: documents come in 16 blocks "
        "that the search cannot cut."
    )


def _table(found: Mapping[Key, Counts], n: int, effect: float) -> Iterator[str]:
    here = {(case, search): c for (case, m, e, search), c in found.items() if (m, e) == (n, effect)}
    most = max(counts.runs for counts in found.values())
    searches = [search for search in _SEARCHES if any(search == other for _, other in here)]
    yield f"\n## {n} settings, effects of {effect:g} sigma\n"
    yield "| case | " + " | ".join(searches) + " |"
    yield "|---" * (len(searches) + 1) + "|"
    for case in CASES:
        if any(case == other for other, _ in here):
            texts = [_text(here.get((case, search)), most) for search in searches]
            yield f"| {case} | " + " | ".join(texts) + " |"


def _text(of: Counts | None, most: int) -> str:
    if of is None:
        return ""
    shares = " / ".join(f"{100.0 * share:.0f}" for share in (of.exact, of.valid, of.innocent))
    fewer = f" ({of.runs} runs)" if of.runs < most else ""
    return f"{shares} / {of.cost:.1f} ± {of.cost_error:.1f}{fewer}"
