"""Draw: one task whose documents are asked in random order, look by look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evalguard.core.paired_scores import PairedScores
from evalguard.core.pairing import pair
from evalguard.core.scores import ScoreTable
from evalguard.core.stopping import SequentialTask
from evalguard.errors import MisalignedRunsError
from evalguard.run.choices import Choices
from evalguard.stats.sequential.finding import LookResult, cannot_stop, find
from evalguard.stats.sequential.stopped import carry_over
from evalguard.stats.sequential.stopping_rule import StoppingRule
from evalguard.stats.unusable_scores import unusable

SampleKey = tuple[str, str, str]
TablesByKey = Mapping[SampleKey, ScoreTable]


@dataclass(slots=True, kw_only=True)
class TaskSample:
    """One task of a sequential run.

    Attributes:
        order: doc_ids in the order drawn.
        looks: after how many documents is looked; the last is all of them.
        place: index of the look that comes next, or that decided.
        findings: of each metric, at the last look.
        reason: why all documents are asked at once, or "".
    """

    task: str
    order: tuple[int, ...]
    looks: tuple[int, ...]
    place: int = 0
    finished: bool = False
    findings: dict[SampleKey, LookResult | None] = field(default_factory=dict)
    reason: str = ""

    @property
    def drawn(self) -> tuple[int, ...]:
        """The documents asked up to the present look, in the order drawn."""
        return self.order[: self.looks[self.place]]

    @property
    def fresh(self) -> tuple[int, ...]:
        """Those of them that no earlier look had."""
        before = self.looks[self.place - 1] if self.place else 0
        return self.drawn[before:]

    @property
    def complete(self) -> bool:
        """Whether all documents are asked."""
        return self.place == len(self.looks) - 1

    @property
    def summary(self) -> SequentialTask:
        """How it went, for reports."""
        return SequentialTask(
            task=self.task,
            n_used=len(self.drawn),
            n_total=len(self.order),
            look=self.place + 1,
            looks=self.looks,
            reason=self.reason,
        )

    def look(
        self,
        base: TablesByKey,
        candidate: TablesByKey,
        rule: StoppingRule,
        choices: Choices,
        base_of_all: TablesByKey,
    ) -> None:
        """Judge the documents drawn so far; go on where they do not decide the gated metrics.

        Args:
            base, candidate: scores of the documents drawn so far.
            base_of_all: the base's scores of all documents, where they are known.
        """
        if self.complete:
            self.finished, self.findings = True, {}
            return
        undecided = False
        for key in [key for key in base if key in candidate]:
            gated = choices.gate.covers(*key)
            reason = cannot_stop(base[key]) or _incomplete_note(base[key], self.drawn)
            paired = None if reason else _pair_tables(base[key], candidate[key], choices.allow)
            if reason and gated:
                self.ask_all(f"{key[2]}: {reason}")
                return
            own = rule.of(choices.gate.margin_of(key[0], key[2]))
            no_points = own.tolerated.unit == "points" and not base[key].is_share
            if paired is None or no_points:
                continue  # it failed, and so it would with all documents
            now = find(
                paired,
                self.drawn,
                len(self.order),
                own,
                base_of_all=base_of_all.get(key),
                with_interval=not gated,
            )
            if gated and now is not None and now.to_confirm:
                self.ask_all(
                    f"{key[2]}: above the margin after {len(self.drawn):,}, confirmed on all"
                )
                return
            self.findings[key] = carry_over(self.findings.get(key), now, margin=own.margin)
            undecided = undecided or (gated and not _is_decided(self.findings[key]))
        self.finished = not undecided
        if undecided:
            self.place += 1

    def ask_all(self, reason: str) -> None:
        """Leave out the looks between: only all documents can tell."""
        self.looks = (*self.looks[: self.place + 1], len(self.order))
        self.reason = reason
        self.place += 1


def _is_decided(finding: LookResult | None) -> bool:
    return finding is not None and finding.side is not None


def _pair_tables(
    base: ScoreTable, candidate: ScoreTable, allow: frozenset[str]
) -> PairedScores | None:
    """Both sides of a metric; None where they give no number, however many documents there are."""
    try:
        paired = pair(base, candidate, allow=allow)
    except MisalignedRunsError:
        return None
    return None if unusable(paired) else paired


def _incomplete_note(table: ScoreTable, drawn: Sequence[int]) -> str:
    same = set(table.doc_ids.tolist()) == set(drawn)
    return "" if same else "some documents have no value for it, so that N is not known"
