"""Rounds of a bisection: search the worst failing metric, repair, judge again, go on."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from evalguard.core.gate_state import Key
from evalguard.core.reports.bisect_report import BisectReport
from evalguard.errors import Interrupted, error_text
from evalguard.report.progress import ProgressLine
from evalguard.report.words.metric_labels import key_label
from evalguard.run.bisection.bisect_findings import BisectFindings
from evalguard.run.bisection.bisection_outcome import build_bisect_report
from evalguard.run.bisection.metric_search import SearchedMetric
from evalguard.run.bisection.model_search import KEPT_FOLDER, search_model
from evalguard.run.bisection.refining import RefinedCandidate, score_candidate_alone
from evalguard.run.bisection.search import SearchPlan
from evalguard.run.bisection.settings_oracle import OpenOracle
from evalguard.run.bisection.subject import (
    Subject,
    drift_of,
)
from evalguard.run.modules.module_prices import PricedModules, measure_prices

_UNPRICED = "what modules would win back at the base's precision was not measured"


@dataclass(slots=True, kw_only=True)
class Bisection:
    """A bisection; ``findings`` hold what it knows at any moment."""

    findings: BisectFindings
    open_oracle: OpenOracle
    progress: ProgressLine

    def run(self, subject: Subject, *, resumable: bool) -> BisectReport:
        """Search metric after metric, until the gate passes or nothing more is to be found.

        Args:
            resumable: whether the run folder knows what was asked for.

        Raises:
            EvalguardError, KeyboardInterrupt: the first search could not begin.
        """
        began = time.monotonic()
        try:
            self._all(subject)
            self._price(subject)
        except (Exception, KeyboardInterrupt) as error:
            if not self.findings.searches:
                raise
            self.findings.break_off(error)
        self.findings.note_unsearched()
        return build_bisect_report(
            self.findings, seconds=time.monotonic() - began, resumable=resumable
        )

    def _all(self, subject: Subject) -> None:
        known, done = self.findings, set[Key]()
        wanted: Subject | str = subject
        while isinstance(wanted, Subject):
            before = len(known.values)
            if not self._settle(wanted):
                return
            found = len(known.values) > before
            done |= known.settled(wanted, found=found)
            if found:
                known.judge()
            if known.passes:
                return
            wanted = known.failing(done)

    def _price(self, subject: Subject) -> None:
        """Measure what modules of a quantised candidate would win back, where they are searched."""
        known, over = self.findings, self.findings.finished.choices.bisect.over
        if over == "settings" or any(one.search.ended for one in known.searches):
            return
        finished, folder = known.finished, known.finished.folder
        try:
            priced = PricedModules.of(finished, over)
            if priced is not None:
                known.prices = measure_prices(
                    priced,
                    finished,
                    subject,
                    announced=known.announced or math.inf,
                    budget=known.budget_left,
                    say=self.progress.note,
                    kept=None if folder is None else folder / KEPT_FOLDER,
                    open_oracle=self.open_oracle,
                )
        except (KeyboardInterrupt, Interrupted):
            known.unfinished = True
            known.notes.append(f"{_UNPRICED}: it was interrupted")
        except Exception as error:  # noqa: BLE001 - what was searched stands, whatever it is
            known.notes.append(f"{_UNPRICED}: {error_text(error)}")

    def _settle(self, subject: Subject) -> bool:
        """Search one metric, the largest causes first; False if that ended early.

        Where drift is far above the margin, so is the jitter of whatever makes it, and hides small
        causes. They are searched when the large ones are put right.
        """
        known, wanted, scored = self.findings, subject.coarse(), self.findings.scored
        while True:
            searched = self._searched(known.plan(wanted, known.candidate, scored))
            if searched is None or searched.search.ended:
                return False
            if not searched.search.culprits:
                if not wanted.is_coarse:
                    return True
                wanted = replace(wanted, margin=subject.margin, gate_margin=None)
                continue
            if not self._put_right(searched, subject, coarse=wanted.is_coarse):
                return False
            if not wanted.is_coarse:
                return True
            scored = score_candidate_alone(known.finished, known.candidate, subject)
            left = drift_of(scored, subject)
            if left <= subject.margin:
                return True
            wanted = replace(subject, sigma=left).coarse()

    def _searched(self, plan: SearchPlan) -> SearchedMetric | None:
        """Search one metric; None where a later one cannot be searched, which is noted."""
        known = self.findings
        try:
            found = search_model(
                plan, known.finished, open_oracle=self.open_oracle, progress=self.progress
            )
        except (KeyboardInterrupt, Interrupted):
            raise
        except Exception as error:
            if not known.searches:
                raise
            known.notes.append(
                f"{key_label(*plan.subject.key)} was not searched: {error_text(error)}"
            )
            return None
        known.searches.append(found)
        return found

    def _put_right(self, searched: SearchedMetric, subject: Subject, *, coarse: bool) -> bool:
        """Put the culprits right; False if the search inside them ended early."""
        reset = self._refined(searched, subject, coarse=coarse)
        if self.findings.searches[-1].search.ended:
            return False
        found = searched.recommendation
        self.findings.put_right(reset, found.values if found else None)
        return True

    def _refined(
        self, searched: SearchedMetric, subject: Subject, *, coarse: bool
    ) -> tuple[str, ...]:
        """The settings to put right; of a guilty group the guilty parts, as fine as can be told.

        A kind of weights is searched for the layer, and that for the module. Where every part of a
        group turned out guilty, what is wrong is no single tensor, and nobody looks further.
        """
        known, reset = self.findings, searched.reset
        inner: SearchedMetric | None = searched
        while inner is not None and (names := self._parted(inner)):
            if not known.may_look_inside(names):
                break
            refined = RefinedCandidate.of(known.candidate, known.searchable.groups, names)
            scored = score_candidate_alone(known.finished, refined.alone, subject)
            alone = replace(subject, sigma=drift_of(scored, subject))  # less than beside others
            within = alone.coarse() if coarse else alone
            inner = self._searched(known.plan(within, refined.alone, scored, names))
            if inner is None or inner.search.status not in ("minimal", "masked"):
                break
            known.candidate = refined.whole
            reset = (*(name for name in reset if name not in names), *inner.reset)
            if inner.search.ended or len(inner.reset) == len(inner.search.settings):
                break
        return reset

    def _parted(self, searched: SearchedMetric) -> tuple[str, ...]:
        """The culprits that stand for several finer settings."""
        guilty = {culprit.setting for culprit in searched.search.culprits}
        groups = self.findings.searchable.groups
        return tuple(name for name in searched.reset if name in guilty and name in groups)
