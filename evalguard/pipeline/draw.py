"""Draw: one task whose documents are asked in random order, look by look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evalguard.errors import MisalignedRunsError
from evalguard.pairing import PairedScores, pair
from evalguard.pipeline.choices import Choices
from evalguard.scores import ScoreTable
from evalguard.stats.sequential import Finding, StoppingRule, cannot_stop, carried, find
from evalguard.stats.unusable import unusable
from evalguard.stopping import SequentialTask

Key = tuple[str, str, str]
Tables = Mapping[Key, ScoreTable]


@dataclass(slots=True, kw_only=True)
class Draw:
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
    findings: dict[Key, Finding | None] = field(default_factory=dict)
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
        base: Tables,
        candidate: Tables,
        rule: StoppingRule,
        choices: Choices,
        base_of_all: Tables,
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
            gated = choices.gate.covers(key[0], key[2])
            reason = cannot_stop(base[key]) or _incomplete(base[key], self.drawn)
            paired = None if reason else _paired(base[key], candidate[key], choices.allow)
            if reason and gated:
                self._ask_all(f"{key[2]}: {reason}")
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
            self.findings[key] = carried(self.findings.get(key), now, margin=own.margin)
            undecided = undecided or (gated and not _decided(self.findings[key]))
        self.finished = not undecided
        if undecided:
            self.place += 1

    def _ask_all(self, reason: str) -> None:
        """Leave out the looks between: only all documents can tell."""
        self.looks = (*self.looks[: self.place + 1], len(self.order))
        self.reason = reason
        self.place += 1


def _decided(finding: Finding | None) -> bool:
    return finding is not None and finding.side is not None


def _paired(base: ScoreTable, candidate: ScoreTable, allow: frozenset[str]) -> PairedScores | None:
    """Both sides of a metric; None where they give no number, however many documents there are."""
    try:
        paired = pair(base, candidate, allow=allow)
    except MisalignedRunsError:
        return None
    return None if unusable(paired) else paired


def _incomplete(table: ScoreTable, drawn: Sequence[int]) -> str:
    same = set(table.doc_ids.tolist()) == set(drawn)
    return "" if same else "some documents have no value for it, so that N is not known"
