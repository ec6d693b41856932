"""What is other than last night: new, still there, gone."""

from __future__ import annotations

from collections.abc import Sequence

from evalguard.core.gate_state import Key
from evalguard.core.reports.night_report import GonePair, PairChanges, PairNight


def changed_since(tonight: PairNight, before: PairNight | None) -> PairChanges:
    """Compare a pair with what it came to last night.

    A metric that gave no number tonight has not recovered, and one that a waiver lets through does
    not fail.

    Args:
        before: None where the pair was not compared last night.
    """
    now = _in_state(tonight, "regressed")
    then = () if before is None else _in_state(before, "regressed")
    passing = (*_in_state(tonight, "passed"), *_in_state(tonight, "undecided"))
    return PairChanges(
        base=tonight.base,
        candidate=tonight.candidate,
        was=None if before is None else before.state,
        regressed=tuple(key for key in now if key not in then),
        still=tuple(key for key in now if key in then),
        recovered=tuple(key for key in then if key in passing),
        failed=_failing(tonight) and (before is None or not _failing(before)),
    )


def gone_since(tonight: Sequence[PairNight], before: Sequence[PairNight]) -> tuple[GonePair, ...]:
    """Pairs of last night that were taken out, or given another name."""
    there = {pair.pair for pair in tonight}
    return tuple(
        GonePair(base=pair.base, candidate=pair.candidate, was=pair.state)
        for pair in before
        if pair.pair not in there
    )


def other_bases(tonight: Sequence[PairNight], before: Sequence[PairNight]) -> tuple[str, ...]:
    """Bases that are not what they were last night: sigma is in their standard errors."""
    then = {(pair.base, pair.base_digest) for pair in before if pair.base_digest}
    known = {name for name, _ in then}
    now = dict.fromkeys((pair.base, pair.base_digest) for pair in tonight if pair.base_digest)
    return tuple(dict.fromkeys(one[0] for one in now if one[0] in known and one not in then))


def _in_state(pair: PairNight, state: str) -> tuple[Key, ...]:
    return tuple(metric.key for metric in pair.metrics if metric.state == state)


def _failing(pair: PairNight) -> bool:
    return pair.state == "failed" or bool(_in_state(pair, "failed"))
