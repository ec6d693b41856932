"""NightSender: the runs of a night at the trackers, one after the other, without waiting in vain.

A tracker that does not answer costs up to a minute and a half a run: two hundred pairs would
wait for hours. What failed twice in a row is not tried again in this night.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.reports.tracked_run import Sent
from evalguard.run.publishing.tracking import TRACKING_INTERRUPTED, track_run

MOST_FAILURES = 2


@dataclass(slots=True, kw_only=True)
class NightSender:
    """Sends runs in one group.

    Attributes:
        failures: of each tracker, in a row.
        reasons: of the last failure of each.
    """

    group: str
    quiet: bool
    failures: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)

    def send(
        self, run: CompareReport, sinks: Sequence[str], *, documents: bool = False
    ) -> tuple[Sent, ...]:
        """Send a run to each of the sinks; what became of it there."""
        return tuple(self._sent(run, sink, documents=documents) for sink in sinks)

    def gone(self, sink: str) -> str:
        """Why a tracker is not tried any more; "" while it is."""
        reason = self.reasons.get(sink, "")
        if reason == TRACKING_INTERRUPTED:
            return reason
        if self.failures[sink] < MOST_FAILURES:
            return ""
        return f"not tried: the {MOST_FAILURES} before it failed"

    def _sent(self, run: CompareReport, sink: str, *, documents: bool) -> Sent:
        gone = self.gone(sink)
        if gone == TRACKING_INTERRUPTED:
            return Sent(sink=sink, state="failed", reason=gone)
        (sent,) = track_run(
            run,
            (sink,),
            documents=documents,
            job_type="nightly",
            group=self.group,
            quiet=self.quiet,
            unreached=gone,
        ).tracked
        if not gone:
            failed = sent.state != "sent" and bool(sent.reason)
            self.failures[sink] = self.failures[sink] + 1 if failed else 0
            self.reasons[sink] = sent.reason
        return sent


def sync_command(sent: Sequence[Sent]) -> str:
    """The one command that sends all runs that W&B's client kept here; "" if there are none."""
    kept = [Path(one.place) for one in sent if one.sink == "wandb" and one.state == "offline"]
    if len(kept) == 1:
        return f"wandb sync {shlex.quote(str(kept[0]))}"
    folders = dict.fromkeys(path.parent for path in kept)
    places = [f"{shlex.quote(str(folder))}/offline-run-*" for folder in folders]
    return f"wandb sync {' '.join(places)}" if places else ""
