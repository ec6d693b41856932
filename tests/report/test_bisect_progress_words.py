"""The lines of a search that runs: what they call cleared."""

from __future__ import annotations

import pytest

from evalguard.bisect.bisect_progress import BisectionProgress
from evalguard.bisect.search.search_result import Accepted, Cleared
from evalguard.page.progress import ProgressLine


@pytest.mark.parametrize(
    ("coarse", "said"),
    [(False, "improbable by now"), (True, "hardly one of the largest causes")],
)
def test_on_part_of_the_documents_nobody_is_cleared(
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
    assert lines[-1] == f"{said}: b; left: a"


def test_a_culprit_that_was_improbable_before_is_said_to_have_been(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    with ProgressLine(quiet=True) as progress:
        monkeypatch.setattr(progress, "note", lines.append)
        shown = BisectionProgress(
            progress, settings=("a", "b", "c"), documents=64, seconds=1.0, subject="mean"
        )
        shown(Cleared(settings=("b", "c")))
        shown(Accepted(setting="a", sigma=1.0))
        shown(Accepted(setting="b", sigma=1.0))
    assert lines[-2:] == [
        "culprit, on all documents: a",
        "culprit, on all documents, although improbable on fewer: b",
    ]
    assert not any("cleared" in line for line in lines)


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


def test_where_one_setting_is_all_that_differs_no_evaluation_is_announced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    with ProgressLine(quiet=True) as progress:
        monkeypatch.setattr(progress, "note", lines.append)
        shown = BisectionProgress(
            progress, settings=("a",), documents=64, seconds=1.0, subject="mean"
        )
        shown.start(20.0, (0.0,), announced=0.0)
    assert lines[1:] == [
        "expected: no evaluation more, for one setting is all that differs",
        "Ctrl-C stops the search and keeps the verdict",
    ]
