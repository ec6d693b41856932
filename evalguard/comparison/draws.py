"""Draw: one task whose documents are asked in random order, look by look."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from evalguard.core.comparison import Comparison, SequentialRun, SequentialTask
from evalguard.core.document_columns import DocumentFields
from evalguard.core.pairing import PairedScores, pair, pick_rows
from evalguard.core.scores import NotCompared, ScoreTable
from evalguard.core.verdict import Margin
from evalguard.engine.choices import Choices
from evalguard.engine.scored_side import ScoredSide
from evalguard.engine.sources import StoredSource
from evalguard.errors import MisalignedRunsError
from evalguard.harness.score_tables import TaskScores
from evalguard.stats.compare_scores import unusable
from evalguard.stats.sequential_looks import LookResult, StoppingRule, cannot_stop, find
from evalguard.stats.stopped import carry_over, complete, stopped_comparison

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


SideTables = tuple[tuple[ScoreTable, ...], tuple[NotCompared, ...], Mapping[str, DocumentFields]]


def tables_of_run(source: StoredSource, draw: TaskSample) -> SideTables:
    """A finished run's scores of the documents drawn so far."""
    tables = tuple(_pick_rows(table, draw) for table in tables_of_task(source, draw.task))
    left_out = tuple(omitted for omitted in source.run.not_compared if omitted.task == draw.task)
    fields = {task: of for task, of in source.run.fields.items() if task == draw.task}
    return tables, left_out, fields


def tables_of_task(source: StoredSource, task: str) -> tuple[ScoreTable, ...]:
    """A finished run's scores of a task."""
    return tuple(table for table in source.run.tables if table.task == task)


def only_sampled(side: ScoredSide, draws: Mapping[str, TaskSample]) -> ScoredSide:
    """A finished run's side, with the documents that the other side was asked."""
    tables = tuple(
        _pick_rows(table, draws[table.task]) if table.task in draws else table
        for table in side.tables
    )
    samples = {
        task: _pick_samples(of, draws[task]) if task in draws else of
        for task, of in side.samples.items()
    }
    return replace(side, tables=tables, samples=samples)


def _pick_samples(of: TaskScores, draw: TaskSample) -> TaskScores:
    if draw.complete:
        return of
    drawn = set(draw.drawn)
    return replace(
        of,
        tables=tuple(_pick_rows(table, draw) for table in of.tables),
        samples=tuple(row for row in of.samples if row["doc_id"] in drawn),
    )


def _pick_rows(table: ScoreTable, draw: TaskSample) -> ScoreTable:
    if draw.complete:
        return table
    return pick_rows(table, np.flatnonzero(np.isin(table.doc_ids, np.asarray(draw.drawn))))


def index_tables(tables: Iterable[ScoreTable]) -> TablesByKey:
    """Tables by task, filter and metric."""
    return {table.key: table for table in tables}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stops:
    """How a sequential run ended.

    Attributes:
        findings: of the metrics of tasks that stopped early, at their last look.
        looks: of each task, as planned.
        run: the same for reports.
    """

    rule: StoppingRule
    findings: Mapping[SampleKey, LookResult]
    looks: Mapping[str, tuple[int, ...]]
    run: SequentialRun

    def early(self, paired: PairedScores, margin: Margin) -> Comparison | None:
        """The comparison of a metric that was stopped early; None where it was not."""
        finding = self.findings.get(paired.base.key)
        if finding is None:
            return None
        looks = self.looks[paired.base.task]
        return stopped_comparison(paired, finding, self.rule.of(margin), looks=looks)

    def late(self, comparison: Comparison) -> Comparison:
        """An ordinary comparison with its place in the sequential run, if it has one."""
        looks = self.looks.get(comparison.task)
        asked = {task.task: task.n_used for task in self.run.tasks}.get(comparison.task)
        if looks is None or asked is None or comparison.outcome == "failed":
            return comparison
        if asked < looks[-1]:
            caveat = (
                f"no statement about all {looks[-1]:,} documents: the task stopped when its gated "
                f"metrics were known, and the numbers are those of the {asked:,} documents asked"
            )
            return replace(comparison, caveats=(*comparison.caveats, caveat))
        if comparison.n_used != looks[-1]:
            return comparison
        return complete(comparison, self.rule, looks=looks)
