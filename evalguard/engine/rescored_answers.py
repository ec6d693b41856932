"""The same answers with other scores: the two sides were scored in different ways."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from evalguard.core.comparison import Comparison
from evalguard.core.document_columns import column_of
from evalguard.core.document_statistics import chosen_option
from evalguard.core.findings import Finding
from evalguard.core.scores import ScoreTable
from evalguard.core.settings import Value
from evalguard.engine.scored_side import ScoredSide
from evalguard.harness.score_tables import TaskScores
from evalguard.harness.surroundings import SCORING_OPTIONS


def explain_other_scores(
    tables: tuple[ScoreTable, ScoreTable], sides: tuple[ScoredSide, ScoredSide]
) -> str:
    """Say how many of the same answers a metric scores otherwise on the two sides, and why.

    "" where none is, where a side shows no answers, and for two models that were asked here: these
    are scored by one code.
    """
    task = tables[0].task
    stored = {"lm-eval run", "stored run"} & {side.identity.kind for side in sides}
    if not stored or tables[0].figure or not all(task in side.samples for side in sides):
        return ""
    scored = _ScoredTwice(tables, (sides[0].samples[task], sides[1].samples[task]))
    return scored.explain((_scoring_version(sides[0]), _scoring_version(sides[1])))


def find_scoring_differences(
    comparisons: Sequence[Comparison], sides: tuple[ScoredSide, ScoredSide]
) -> tuple[Finding, ...]:
    """Say which scoring options of a task differ, where no score is known to follow from it.

    One finding for each difference: the first task and metric that has it, and how many more.
    """
    by_text: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        if comparison.outcome == "failed" or not all(
            comparison.task in side.samples for side in sides
        ):
            continue
        ours, theirs = (side.samples[comparison.task].scoring for side in sides)
        for text in list_scoring_differences(ours, theirs, comparison.key):
            by_text.setdefault(text, []).append(comparison)
    return tuple(
        Finding(
            kind="made_differently",
            text=f"the two sides are scored by other options: {text}"
            + (f" (and so {len(of) - 1:,} more)" if len(of) > 1 else ""),
            task=of[0].task,
            filter=of[0].filter,
            metric=of[0].metric,
            values={"option": text.partition(" ")[0], "metrics": len(of)},
        )
        for text, of in by_text.items()
    )


def _scoring_version(side: ScoredSide) -> str:
    """The lm-eval that scored a side, "" where that is not recorded."""
    packages = side.environment.get("packages")
    version = packages.get("lm_eval") if isinstance(packages, Mapping) else None
    return str(side.environment.get("lm_eval_version") or version or "")


# Scores that differ by less are one score that was written twice.
_ROUNDING = 1e-6


class _Answer(NamedTuple):
    """Texts, log-likelihoods and whether these are greedy, of a document's requests."""

    texts: Sequence[Any]
    likelihoods: Sequence[Any]
    greedy: Sequence[Any]


@dataclass(frozen=True)
class _ScoredTwice:
    """One metric's scores of two sides' answers, and how each side scores."""

    tables: tuple[ScoreTable, ScoreTable]
    tasks: tuple[TaskScores, TaskScores]

    def explain(self, versions: tuple[str, str]) -> str:
        """Say how many of the same answers have other scores, and what differs; "" for none.

        Args:
            versions: of lm-eval, "" where it is not known.
        """
        if self._answers_are_hidden:
            return ""
        rows = [row for row in self._rescored if self._is_same_answer(row)]
        if not rows:
            return ""
        n = self.tables[0].n
        same = sum(map(self._is_same_answer, range(n)))
        differ = "1 score differs" if len(rows) == 1 else f"{len(rows):,} scores differ"
        answers = f"all {n:,} answers are the same, {differ}"
        if same < n:
            answers = f"{same:,} of {n:,} answers are the same, and of these {differ}"
        return (
            f"{answers}: {self._cause(rows, versions)}; this says nothing of the model (score both "
            "sides with one task config and one lm-eval)"
        )

    @property
    def _answers_are_hidden(self) -> bool:
        """Whether samples may lack answers that a score follows from, or say not whose they are."""
        base, candidate = self.tables
        aligned = np.array_equal(base.doc_ids, candidate.doc_ids)
        return not aligned or any(of.scoring.get("repeats", 1) != 1 for of in self.tasks)

    @property
    def _rescored(self) -> list[int]:
        """Rows of documents with two scores."""
        base, candidate = self.tables
        if base.rescoring is not None and candidate.rescoring is not None:
            pairs = zip(base.rescoring.items, candidate.rescoring.items, strict=True)
            return [row for row, (ours, theirs) in enumerate(pairs) if ours != theirs]
        close = np.isclose(base.values, candidate.values, rtol=_ROUNDING, atol=_ROUNDING)
        known = np.isfinite(base.values) & np.isfinite(candidate.values)
        return [int(row) for row in np.flatnonzero(known & ~close)]

    def _is_same_answer(self, row: int) -> bool:
        """Whether a document has the same answer on both sides, as far as this metric sees it."""
        if any(position is None for position in self._places[row]):
            return False
        base, candidate = (self._answer(side, row) for side in (0, 1))
        if any(text is not None for text in base.texts):
            return base.texts == candidate.texts
        numbers = (base.likelihoods, candidate.likelihoods)
        if not numbers[0] or None in numbers[0] or len(numbers[0]) != len(numbers[1]):
            return False
        hashes = [table.asked_hashes for table in self.tables]
        if all(hashes) and hashes[0][row] != hashes[1][row]:
            return False
        if base == candidate:
            return True
        metric = self.tables[0].metric
        if self._output_type == "loglikelihood" and metric == "acc":
            return base.greedy == candidate.greedy and None not in base.greedy
        chooses = self._output_type == "multiple_choice" and metric in _CHOOSING
        return chooses and self._chooses_alike(row, base.likelihoods, candidate.likelihoods)

    @property
    def _output_type(self) -> str:
        """What lm-eval's own rules for a metric depend on; "" for a task with rules of its own."""
        kinds = {str(of.scoring.get("output_type", "")) for of in self.tasks}
        own = any("process_results" in of.scoring for of in self.tasks)
        return kinds.pop() if len(kinds) == 1 and not own else ""

    def _chooses_alike(self, row: int, *sides: Sequence[float]) -> bool:
        """Whether both sides choose one option, by each of the rules that there are."""
        delimiter = str(self.tasks[0].scoring.get("target_delimiter", " "))
        asked: Any = self._columns[0]["arguments"][self._places[row][0] or 0]
        texts = [str(json.loads(argument)[-1]).removeprefix(delimiter) for argument in asked or ()]
        base, candidate = ([chosen_option(rule, of, texts) for rule in _CHOOSING] for of in sides)
        return base == candidate and None not in base

    def _answer(self, side: int, row: int) -> _Answer:
        columns, position = self._columns[side], self._places[row][side] or 0
        values: list[Any] = [columns[name][position] for name in _ANSWERED]
        return _Answer(*(list(of or ()) for of in values))

    @cached_property
    def _columns(self) -> list[dict[str, Sequence[Value]]]:
        names = (*_ANSWERED, "arguments")
        return [{name: column_of(of.samples, name) for name in names} for of in self.tasks]

    @cached_property
    def _places(self) -> list[tuple[int | None, int | None]]:
        """Where each row's document stands in the samples of both sides; None where it does not."""
        ours, theirs = (
            {doc_id: at for at, doc_id in enumerate(column_of(of.samples, "doc_id"))}
            for of in self.tasks
        )
        return [(ours.get(doc), theirs.get(doc)) for doc in self.tables[0].doc_ids.tolist()]

    def _cause(self, rows: Sequence[int], versions: tuple[str, str]) -> str:
        """Name the options that differ, else the versions, else where the two ways part."""
        base, candidate = self.tables
        ours, theirs = (of.scoring for of in self.tasks)
        differing = list_scoring_differences(ours, theirs, base.key)
        if differing:
            return " and ".join(differing)
        step = "the code that scores differs, or does not score alike twice (a judge, a time limit)"
        read = base.answers, candidate.answers
        if all(read) and any(read[0][row] != read[1][row] for row in rows):
            step = f"the filter {base.filter} reads other answers in the same texts"
        if all(versions) and versions[0] != versions[1]:
            return f"lm_eval is {versions[0]} and {versions[1]}, and {step}"
        if ours and theirs:
            return f"no recorded option differs, so {step}"
        silent = "base" if not ours else "candidate"
        return f"{step}; the {silent} does not record how it was scored"


_ANSWERED = ("text", "loglikelihood", "is_greedy")
# lm-eval's metrics of a chosen option, and the rules by which one is chosen.
_CHOOSING = ("acc", "acc_norm", "acc_bytes")


def list_scoring_differences(
    base: Mapping[str, Value], candidate: Mapping[str, Value], key: tuple[str, str, str]
) -> tuple[str, ...]:
    """Name the scoring options in which two configurations of a task differ, for one metric.

    Args:
        base, candidate: as of ``describe_scoring``; {} is not known, and differs from nothing.
        key: (task, filter, metric).
    """
    if not base or not candidate:
        return ()
    _, filter_name, metric = key
    differences = []
    for name in SCORING_OPTIONS:
        ours, theirs = base.get(name), candidate.get(name)
        if name == "filter_list":
            ours, theirs = (_entry(of, filter_name) for of in (ours, theirs))
        if name == "metric_list":
            ours, theirs = (_entry(of, metric) for of in (ours, theirs))
        if ours != theirs:
            differences.append(f"{name} differs{_shown_difference(ours, theirs)}")
    return tuple(differences)


def _entry(of: Value, name: str) -> Value:
    return of.get(name) if isinstance(of, Mapping) else None


def _shown_difference(ours: Value, theirs: Value) -> str:
    """Say " (ignore_case true -> not given)" where that is short; "" where it is not."""
    if isinstance(ours, list) and isinstance(theirs, list):  # steps of a filter
        steps = [[str(_entry(step, "function")) for step in of] for of in (ours, theirs)]
        if steps[0] != steps[1]:
            return f" ({', '.join(steps[0])} -> {', '.join(steps[1])})"
        pairs = [
            (first, second) for first, second in zip(ours, theirs, strict=True) if first != second
        ]
        ours, theirs = pairs[0] if pairs else (ours, theirs)
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        names = [
            name for name in dict.fromkeys((*ours, *theirs)) if ours.get(name) != theirs.get(name)
        ]
        changes = [
            f"{name} {_short(ours.get(name))} -> {_short(theirs.get(name))}" for name in names
        ]
        return f" ({', '.join(changes)})"
    short = _short(ours), _short(theirs)
    return f" ({short[0]} -> {short[1]})" if max(map(len, short)) <= _MOST_SHOWN else ""


_MOST_SHOWN = 40


def _short(value: Value) -> str:
    if value is None:
        return "not given"
    written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    written = " ".join(written.split())
    return written if len(written) <= _MOST_SHOWN else f"{written[: _MOST_SHOWN - 3]}..."
