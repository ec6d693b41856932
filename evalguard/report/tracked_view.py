"""What became of a run at the trackers, in words."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from evalguard.core.compare_report import CompareReport
from evalguard.core.tracked_run import Sent, tracker_title
from evalguard.page.safe_text import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedView:
    """One tracker: where the run is, or why not, and the command that sends it ("" if none)."""

    text: str
    command: str = ""

    def __str__(self) -> str:
        return f"{self.text}\n  {self.command}" if self.command else self.text


def tracked_views(report: CompareReport) -> tuple[TrackedView, ...]:
    """Return what became of the run, one for each tracker, safe to show."""
    return tuple(tracked_view(sent, report.run_folder) for sent in report.tracked)


def tracked_view(sent: Sent, folder: str | None) -> TrackedView:
    """Return what became of a run at one tracker; ``folder`` is the run's, if it has one."""
    title, command = tracker_title(sent.sink), sent.next_command
    if sent.state == "sent":
        return TrackedView(text=printable(f"{title}: {sent.place}"))
    where = "kept offline" if sent.state == "offline" else "not sent"
    why = f" ({sent.reason})" if sent.reason else ""
    if sent.state == "failed" and folder and not command:
        command = f"evalguard track {shlex.quote(folder)} --track {sent.sink}"
    text = f"{title}: {where}{why}" + ("; to send it:" if command else "")
    return TrackedView(text=printable(text), command=printable(command))
