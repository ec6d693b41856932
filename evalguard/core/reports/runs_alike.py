"""Whether runs may stand in one table: the same base, asked the same documents in the same way."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields

from evalguard.core.comparison import Comparison
from evalguard.core.reports.asked_task import AskedTask
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.settings import Value

# Of documents that came in an order of their own until the verdict was clear.
_OF_WHICH_DOCUMENTS = frozenset({"n", "documents", "prompts"})
_ASKED = tuple(one.name for one in fields(AskedTask) if one.name != "task")
_SAME = 1e-6  # relative: the rounding of one computation made twice
_NAMES = {
    "n": "documents asked",
    "n_total": "documents of the task",
    "version": "task version",
    "output_type": "kind of request",
    "num_fewshot": "few-shot examples",
    "fewshot_seed": "seed of the few-shot examples",
    "documents": "digest of the documents",
    "prompts": "digest of the base's prompts",
}


def find_run_differences(first: CompareReport, other: CompareReport) -> Iterator[str]:
    """Yield why two runs' candidates may not be put side by side, one sentence each.

    What only one of the two says (results of earlier versions say less) is no difference; where
    neither shows which documents were asked, the base's values have to be the same.
    """
    yield from _base_differences(first, other)
    if first.gate.confidence != other.gate.confidence:
        yield f"confidence of the intervals: {first.gate.confidence:g}, {other.gate.confidence:g}"
    ours, theirs = _tasks(first), _tasks(other)
    for tasks, missing in ((ours, theirs), (theirs, ours)):
        alone = [task for task in tasks if task not in missing]
        if alone:
            yield f"tasks that only one of them has: {', '.join(alone)}"
            return
    for task in ours:
        yield from _task_differences(task, first, other)


def _base_differences(first: CompareReport, other: CompareReport) -> Iterator[str]:
    one, two = first.base, other.base
    if one.digest == two.digest:
        return
    said = [
        f"{name}: {ours} and {theirs}"
        for name, ours, theirs in (
            ("name", one.name, two.name),
            ("model", f"{one.model}@{one.revision}", f"{two.model}@{two.revision}"),
            ("description", one.description, two.description),
        )
        if ours != theirs
    ]
    said += _value_differences(_of_base(first), _of_base(other))
    what = "; ".join(said[:3]) or "its weights, settings or code"
    yield f"the base is not the same ({one.digest[:8]} and {two.digest[:8]}): {what}"


def _of_base(report: CompareReport) -> Mapping[str, Value]:
    found = report.environment.get("base")
    return found if isinstance(found, Mapping) else {}


def _value_differences(one: Mapping[str, Value], two: Mapping[str, Value]) -> Iterator[str]:
    for name in dict.fromkeys((*one, *two)):
        ours, theirs = one.get(name), two.get(name)
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            yield from _value_differences(ours, theirs)
        elif ours != theirs:
            yield f"{name}: {ours} and {theirs}"


def _tasks(report: CompareReport) -> dict[str, None]:
    """Tasks and groups of which a run says anything, if only that they were asked."""
    found = [one.task for one in report.comparisons]
    found += [one.task for one in report.tasks]
    found += [one.task for one in report.distributions]
    return dict.fromkeys([*found, *(one.task for one in report.not_compared)])


def _task_differences(task: str, first: CompareReport, other: CompareReport) -> Iterator[str]:
    stopped = stops_early(first) or stops_early(other)
    ours, theirs = (
        next((one for one in report.tasks if one.task == task), None) for report in (first, other)
    )
    if ours is not None and theirs is not None:
        for name in _ASKED:
            one, two = getattr(ours, name), getattr(theirs, name)
            known = one not in ("", None) and two not in ("", None)
            if known and one != two and not (stopped and name in _OF_WHICH_DOCUMENTS):
                yield f"{task}: {_NAMES.get(name, name)}: {one} and {two}"
    proven = ours is not None and theirs is not None and ours.documents and theirs.documents
    if stopped or proven:
        return
    values = {one.key: one for one in other.comparisons}
    for comparison in first.comparisons:
        if comparison.task == task and comparison.key in values:
            yield from _metric_differences(comparison, values[comparison.key])


def stops_early(report: CompareReport) -> bool:
    """Whether a sequential run left documents out."""
    return report.sequential is not None and report.sequential.early


def _metric_differences(one: Comparison, two: Comparison) -> Iterator[str]:
    what = f"{one.task} {one.metric}"
    if one.n != two.n:
        yield f"{what}: documents: {one.n} and {two.n}"
    elif not _same_value(one.base, two.base):
        yield f"{what}: the base's value: {one.base:.6g} and {two.base:.6g}"


def _same_value(one: float | None, two: float | None) -> bool:
    if one is None or two is None or (math.isnan(one) and math.isnan(two)):
        return True
    return math.isclose(one, two, rel_tol=_SAME)
