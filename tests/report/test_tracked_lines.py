"""What became of a run at its trackers: said in the report, whatever happened there."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from example_reports import DEMO

from evalguard.core.tracked_run import Sent
from evalguard.publish.tracking import track_run
from evalguard.report.compare_document import compare_document, read_report
from evalguard.report.compare_terminal import render_terminal
from evalguard.report.tracked_view import tracked_views

SENT = Sent(sink="wandb", state="sent", place="https://wandb.example/a-team/evalguard/runs/x1")
OFFLINE = Sent(
    sink="wandb",
    state="offline",
    place="reports/wandb/offline-run-1",
    next_command="wandb sync reports/wandb/offline-run-1",
    reason="HTTP 500",
)
FAILED = Sent(sink="mlflow", state="failed", reason="no answer within 95 s")


def with_tracked(*several: Sent, **changes: Any) -> Any:
    return dataclasses.replace(DEMO, tracked=several, **changes)


def test_one_line_says_where_the_run_is_or_what_sends_it() -> None:
    folder = DEMO.run_folder
    assert [str(view) for view in tracked_views(with_tracked(SENT, OFFLINE, FAILED))] == [
        "W&B: https://wandb.example/a-team/evalguard/runs/x1",
        "W&B: kept offline (HTTP 500); to send it:\n  wandb sync reports/wandb/offline-run-1",
        "MLflow: not sent (no answer within 95 s); to send it:\n"
        f"  evalguard track {folder} --track mlflow",
    ]
    (unwritten,) = tracked_views(with_tracked(FAILED, run_folder=None))
    assert str(unwritten) == "MLflow: not sent (no answer within 95 s)"
    assert tracked_views(DEMO) == ()


def test_the_terminal_says_it_after_where_the_run_is_saved() -> None:
    lines = render_terminal(with_tracked(SENT), width=80, color=False, verbose=True).splitlines()
    saved = next(number for number, line in enumerate(lines) if line.startswith("Saved in"))
    assert "W&B: https://wandb.example/a-team/evalguard/runs/x1" in lines[saved + 1 : saved + 3]


def test_a_command_that_sends_it_can_be_copied() -> None:
    text = render_terminal(with_tracked(OFFLINE), width=80, color=False, verbose=True)
    assert "\n  wandb sync reports/wandb/offline-run-1\n" in text


def test_no_character_of_a_server_acts_on_the_terminal() -> None:
    hostile = Sent(sink="wandb", state="failed", reason="\x1b[2Jgone\u202e\n")
    (view,) = tracked_views(with_tracked(hostile))
    assert (view.text + view.command).isprintable()


def test_the_document_says_it_and_is_read_back() -> None:
    written = compare_document(with_tracked(OFFLINE))
    assert written["tracked"] == [dataclasses.asdict(OFFLINE)]
    assert read_report(written).tracked == (OFFLINE,)
    older = {key: value for key, value in written.items() if key != "tracked"}
    assert read_report(older).tracked == ()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("api_key=abc is bad")])
def test_the_verdict_stands_whatever_sending_raises(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def send_run(*args: object, **given: object) -> Sent:
        raise error

    monkeypatch.setattr("evalguard.publish.tracking.send_run", send_run)
    unwritten = dataclasses.replace(DEMO, run_folder=None)
    after = track_run(unwritten, ("wandb", "mlflow"), quiet=True)
    assert after == unwritten
    assert [sent.state for sent in after.tracked] == ["failed", "failed"]
    reason = (
        "interrupted" if isinstance(error, KeyboardInterrupt) else "RuntimeError: api_key=*** is"
    )
    assert all(sent.reason.startswith(reason) for sent in after.tracked)


def test_nothing_is_begun_without_a_tracker(capsys: pytest.CaptureFixture[str]) -> None:
    assert track_run(DEMO, ()) is DEMO
    assert capsys.readouterr().err == ""
