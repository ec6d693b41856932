"""The lines of a search that runs: what they call cleared."""

from __future__ import annotations

import pytest

from evalguard.bisect.oracle import Cleared
from evalguard.report.progress import BisectionProgress, ProgressLine


@pytest.mark.parametrize(
    ("coarse", "said"),
    [(False, "cleared: b; left: a"), (True, "none of the largest causes: b; left: a")],
)
def test_a_search_for_the_largest_causes_clears_nobody(
    coarse: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    with ProgressLine(quiet=True) as progress:
        monkeypatch.setattr(progress, "note", lines.append)
        shown = BisectionProgress(
            progress, settings=("a", "b"), documents=64, seconds=1.0, subject="mean"
        )
        shown.start(20.0, (2.0,), coarse=coarse)
        shown(Cleared(settings=("b",)))
    assert "for 1 culprit" in lines[1]
    assert lines[-1] == said


@pytest.mark.parametrize(("seconds", "told"), [(0.0, "2.0"), (90.0, "2.0 (3 min 0 s)")])
def test_no_time_is_foretold_where_no_model_has_answered(
    seconds: float, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    with ProgressLine(quiet=True) as progress:
        monkeypatch.setattr(progress, "note", lines.append)
        shown = BisectionProgress(
            progress, settings=("a", "b"), documents=64, seconds=seconds, subject="mean"
        )
        shown.start(20.0, (2.0,))
    assert lines[1] == f"expected: {told} full evaluations for 1 culprit"
