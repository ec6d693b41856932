"""How many loops are found, and how many honest texts are taken for one.

    python -m benchmarks.loops [FILE]

Reads tests/loop_texts/texts.jsonl; writes a table to FILE, else to the terminal. 95% intervals are
exact binomial ones (Clopper and Pearson).
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import binomtest

from benchmarks.output import deliver
from evalguard.core.loops import find_loop

TEXTS = Path(__file__).parent.parent / "tests" / "loop_texts" / "texts.jsonl"


def read_texts() -> list[dict[str, Any]]:
    """Read the labelled texts."""
    return [json.loads(line) for line in TEXTS.read_text("utf-8").splitlines()]


def share(found: Sequence[bool]) -> str:
    """How many of how many, and the interval of their share."""
    if not found:
        return ""
    interval = binomtest(sum(found), len(found)).proportion_ci(method="exact")
    return f"{sum(found)} of {len(found)} ({100 * interval.low:.0f} to {100 * interval.high:.0f}%)"


def table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Lines of the page."""
    yield "# Loops found, and honest texts taken for one"
    yield ""
    yield (
        f"{len(rows)} texts of tests/loop_texts; the constants of evalguard/core/loops.py "
        "were chosen without the held-out half. Shares with 95% Clopper-Pearson intervals. "
        "`python -m benchmarks.loops benchmarks/results/loops.md`."
    )
    found: dict[tuple[bool, str, bool], list[bool]] = defaultdict(list)
    for row in rows:
        is_found = find_loop(row["text"], row["ended"]) is not None
        for kind in (row["kind"], ""):
            found[row["loops"], kind, row["held_out"]].append(is_found)
    for loops, title in ((True, "Loops: found"), (False, "Honest: taken for a loop")):
        yield ""
        yield f"| {title} | held out | others |"
        yield "|---|---|---|"
        kinds = sorted({kind for label, kind, _ in found if label == loops and kind})
        for kind in [*kinds, ""]:
            cells = (share(found.get((loops, kind, held), [])) for held in (True, False))
            yield f"| {kind or '**all**'} | {' | '.join(cells)} |"


if __name__ == "__main__":
    deliver(table(read_texts()), Path(sys.argv[1]) if len(sys.argv) > 1 else None)
