"""What became of a run at the trackers, in words."""

from __future__ import annotations

import shlex

from evalguard.compare_report import CompareReport
from evalguard.report.plain_text import printable
from evalguard.tracked_run import Sent, SinkName

TITLES: dict[SinkName, str] = {"wandb": "W&B", "trackio": "trackio", "mlflow": "MLflow"}


def tracked_lines(report: CompareReport) -> list[str]:
    """Return one line for each tracker: where the run is, or why not and what sends it."""
    return [printable(_line(sent, report.run_folder)) for sent in report.tracked]


def _line(sent: Sent, folder: str | None) -> str:
    title = TITLES[sent.sink]
    if sent.state == "sent":
        return f"{title}: {sent.place}"
    why = f" ({sent.reason})" if sent.reason else ""
    if sent.state == "offline":
        return f"{title}: kept offline{why}; to send it: {sent.next_command}"
    later = f"; later: evalguard track {shlex.quote(folder)} --track {sent.sink}" if folder else ""
    return f"{title}: not sent{why}{later}"
