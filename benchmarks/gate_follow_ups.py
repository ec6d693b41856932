"""Asked exactly as many documents as an undecided run is said to need: how many are decided then.

A part of benchmarks/gate_table.py. The documents that are known stay, and others of the same
population are added; beside it, as many new ones. A margin in sigma shrinks as documents are
added: there the report names a margin that does not, and this is what the longer run is held to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.differences import Array
from benchmarks.gate_populations import Cell, Metric, follow_ups
from benchmarks.tally import Share, seed_of
from evalguard.comparison.gate_judgement import judge_comparisons
from evalguard.core.comparison import Comparison, Undecided
from evalguard.core.gate import Gate
from evalguard.core.verdict import Margin
from evalguard.stats.compare_scores import compare_documents

SEED = 20261126
RUNS = 50  # undecided ones of each row
_MOST_DRAWS = 10  # for each of them
_MOST_DOCUMENTS = 60_000  # of an answer: more are not simulated


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedUp:
    """What became of the undecided runs of one population.

    Attributes:
        median_n: of what was asked; 0 where nothing was.
        unanswered: undecided runs that name no number, or one too large to be simulated.
        longer, anew: decided with the known documents among those asked; with other ones.
    """

    cell: Cell
    undecided: Share
    unanswered: int
    median_n: int
    longer: Share | None
    anew: Share | None


def follow_up(cell: Cell, runs: int, confidence: float = 0.95) -> FollowedUp:
    """Draw runs until so many are undecided, and ask each what it says it needs."""
    name = f"{cell.table}|{cell.name}|{cell.n}|{cell.drift:g}"
    rng = np.random.default_rng([SEED, seed_of(name)])
    metric, drawn, asked, unanswered = cell.metrics[0], 0, list[int](), 0
    longer, anew = list[bool](), list[bool]()
    while len(asked) + unanswered < runs and drawn < runs * _MOST_DRAWS:
        base, candidate = metric.documents(rng, cell.n)
        drawn += 1
        found = _judge(metric, base, candidate, cell.margin, confidence)
        if found.outcome != "undecided":
            continue
        needed, margin = _needed(found.undecided, cell.margin)
        if needed is None or needed > _MOST_DOCUMENTS:
            unanswered += 1
            continue
        asked.append(needed)
        more = metric.documents(rng, needed - cell.n)
        joined = np.concatenate([base, more[0]]), np.concatenate([candidate, more[1]])
        others = metric.documents(rng, needed)
        for decided, documents in ((longer, joined), (anew, others)):
            said = _judge(metric, *documents, margin, confidence).outcome
            decided.append(said != "undecided")
    return FollowedUp(
        cell=cell,
        undecided=Share(value=(len(asked) + unanswered) / drawn, of=drawn),
        unanswered=unanswered,
        median_n=int(np.median(asked)) if asked else 0,
        longer=_share(longer),
        anew=_share(anew),
    )


def _judge(
    metric: Metric, base: Array, candidate: Array, margin: Margin, confidence: float
) -> Comparison:
    """The comparison as the gate leaves it."""
    paired = metric.pair(base, candidate)
    compared = compare_documents(paired, margin=margin, confidence=confidence)
    gate = Gate(margin=margin, confidence=confidence)
    return judge_comparisons([compared], gate=gate).comparisons[0]


def _needed(undecided: Undecided | None, margin: Margin) -> tuple[int | None, Margin]:
    """Documents that the report names, and the margin that they are for."""
    if undecided is None:
        return None, margin
    if undecided.needed_n is None and undecided.fixed_margin:
        return undecided.fixed_margin_n, Margin.parse(undecided.fixed_margin)
    return undecided.needed_n, margin


def tabulate_follow_ups(runs: int = RUNS, every: int = 1) -> Iterator[str]:
    """Yield the table in Markdown; of every so many populations."""
    yield "\n## Asked exactly as many documents as were said to be needed\n"
    yield (
        f"Of {runs} undecided runs of each population (fewer where few are undecided): what they "
        "say they need, in the median, and the percent that is decided then: with the known "
        "documents among those, and with other documents. *no number*: none is named (or more than "
        f"{_MOST_DOCUMENTS:,}). ± Monte Carlo error.\n"
    )
    yield "| documents | n | drift | undecided | no number | asked | decided | with others |"
    yield "|" + "---|" * 8
    for cell in [*follow_ups()][::every]:
        found = follow_up(cell, runs)
        shares = " | ".join(_text(one) for one in (found.longer, found.anew))
        yield (
            f"| {cell.name} | {cell.n:,} | {cell.drift:g} | {_text(found.undecided)} | "
            f"{found.unanswered} | {found.median_n:,} | {shares} |"
        )


def _share(hits: list[bool]) -> Share | None:
    return Share(value=sum(hits) / len(hits), of=len(hits)) if hits else None


def _text(share: Share | None) -> str:
    return "" if share is None else f"{100 * share.value:.0f} ± {100 * share.error:.0f}"
