"""The conditions under a card's table: one line, and which runs may share the table."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from urllib.parse import quote

from evalguard.core.compare_report import AskedTask, CompareReport, RunIdentity
from evalguard.core.comparison import Comparison
from evalguard.core.settings import Value
from evalguard.page.rounding import format_count
from evalguard.page.safe_text import printable

# Of documents that came in an order of their own until the verdict was clear.
_OF_WHICH_DOCUMENTS = frozenset({"n", "documents", "prompts"})
_ASKED = tuple(field.name for field in fields(AskedTask) if field.name != "task")
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
    ours, theirs = _compared_tasks(first), _compared_tasks(other)
    for tasks, missing in ((ours, theirs), (theirs, ours)):
        alone = [task for task in tasks if task not in missing]
        if alone:
            yield f"tasks that only one of them has: {', '.join(alone)}"
            return
    for task in ours:
        yield from _task_differences(task, first, other)


def _base_differences(first: CompareReport, other: CompareReport) -> Iterator[str]:
    first_base, other_base = first.base, other.base
    if first_base.digest == other_base.digest:
        return
    differences = [
        f"{name}: {ours} and {theirs}"
        for name, ours, theirs in (
            ("name", first_base.name, other_base.name),
            (
                "model",
                f"{first_base.model}@{first_base.revision}",
                f"{other_base.model}@{other_base.revision}",
            ),
            ("description", first_base.description, other_base.description),
        )
        if ours != theirs
    ]
    differences += _value_differences(_of_base(first), _of_base(other))
    what = "; ".join(differences[:3]) or "its weights, settings or code"
    yield f"the base is not the same ({first_base.digest[:8]} and {other_base.digest[:8]}): {what}"


def _of_base(report: CompareReport) -> Mapping[str, Value]:
    described = report.environment.get("base")
    return described if isinstance(described, Mapping) else {}


def _value_differences(one: Mapping[str, Value], two: Mapping[str, Value]) -> Iterator[str]:
    for name in dict.fromkeys((*one, *two)):
        ours, theirs = one.get(name), two.get(name)
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            yield from _value_differences(ours, theirs)
        elif ours != theirs:
            yield f"{name}: {ours} and {theirs}"


def _compared_tasks(report: CompareReport) -> dict[str, None]:
    """Tasks and groups of which a run says anything, if only that they were asked."""
    names = [comparison.task for comparison in report.comparisons]
    names += [task.task for task in report.tasks]
    names += [distribution.task for distribution in report.distributions]
    return dict.fromkeys([*names, *(skipped.task for skipped in report.not_compared)])


def _task_differences(task: str, first: CompareReport, other: CompareReport) -> Iterator[str]:
    stopped = stops_early(first) or stops_early(other)
    ours, theirs = (
        next((asked for asked in report.tasks if asked.task == task), None)
        for report in (first, other)
    )
    if ours is not None and theirs is not None:
        for name in _ASKED:
            our_value, their_value = getattr(ours, name), getattr(theirs, name)
            known = our_value not in ("", None) and their_value not in ("", None)
            if known and our_value != their_value and not (stopped and name in _OF_WHICH_DOCUMENTS):
                yield f"{task}: {_NAMES.get(name, name)}: {our_value} and {their_value}"
    proven = ours is not None and theirs is not None and ours.documents and theirs.documents
    if stopped or proven:
        return
    values = {judged.key: judged for judged in other.comparisons}
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


_MOST_NAMED = 5


def list_tasks(report: CompareReport) -> tuple[AskedTask, ...]:
    """Return how each task was asked; of results of earlier versions, as far as that is known."""
    if report.tasks:
        return report.tasks
    groups = {comparison.task for comparison in report.comparisons if comparison.subtasks}
    tasks = {
        comparison.task: AskedTask(task=comparison.task, n=comparison.n, n_total=comparison.n_total)
        for comparison in report.comparisons
        if comparison.task not in groups
    }
    return tuple(tasks.values())


def asked_in_part(report: CompareReport) -> bool:
    """Whether documents of any task were left out, by a limit or by stopping early."""
    return any(True for _ in _parts(report)) or stops_early(report)


def partly_asked_text(report: CompareReport) -> str:
    """Say which tasks were asked in part: "100 of 2,048 documents of piqa"; "" where none was."""
    parts = list(_parts(report))
    unnamed = f" and {len(parts) - _MOST_NAMED} more tasks" if len(parts) > _MOST_NAMED else ""
    return ", ".join(parts[:_MOST_NAMED]) + unnamed


def _parts(report: CompareReport) -> Iterator[str]:
    stopped = {} if report.sequential is None else {o.task: o for o in report.sequential.tasks}
    for task in list_tasks(report):
        n, total = task.n, task.n_total
        if task.task in stopped:
            n, total = stopped[task.task].n_used, max(total, stopped[task.task].n_total)
        if n < total:
            yield f"{format_count(n)} of {format_count(total)} documents of {printable(task.task)}"


_UNKNOWN = "?"
_DIGITS = 8  # of a digest or a commit
_MOST_TASKS = 8
_SAFE = "/._-+=()?"
_LONGEST = 120  # letters of a name
_PACKAGES = ("lm_eval", "torch", "transformers")


def conditions_line(reports: Sequence[CompareReport]) -> str:
    """Return the conditions of runs that may stand in one table; "?" for what is not known.

    ``base`` and every ``cand`` are ``name@commit#digest``, the digest over all that can change a
    score; ``task`` has its name, v(ersion), shots, seed of the examples, n(umber of documents, of
    how many) and digests of docs, prompts and, where there is one, chat template, of base/cand
    where they differ; more than eight tasks are one digest over these.
    """
    fields = [
        ("evalguard", _joined(_encoded(report.version) for report in reports)),
        *((name, _joined(_package(report, name) for report in reports)) for name in _PACKAGES),
        ("base", _model(reports[0].base)),
        *(("cand", _model(report.candidate)) for report in reports),
        *_tasks(reports),
        ("batch", _joined(_batches(report) for report in reports)),
        ("gate", _joined(_gate(report) for report in reports)),
    ]
    seeds = [str(report.sequential.seed) for report in reports if report.sequential is not None]
    if seeds:
        fields.append(("order", _joined(f"seed={seed}" for seed in seeds)))
    return "|".join(f"{key}:{value}" for key, value in fields)


def task_conditions(report: CompareReport) -> tuple[str, ...]:
    """Return what the line has of each task."""
    return tuple(_task(task) for task in list_tasks(report))


def _tasks(reports: Sequence[CompareReport]) -> Iterator[tuple[str, str]]:
    """Of the run that asked most: one that stopped early asked a part of them."""
    whole = max(reports, key=lambda report: sum(task.n for task in list_tasks(report)))
    tasks = task_conditions(whole)
    if len(tasks) <= _MOST_TASKS:
        yield from (("task", task) for task in tasks)
        return
    digest = hashlib.sha256("\n".join(tasks).encode()).hexdigest()
    yield "tasks", f"{len(tasks)}#{digest[:_DIGITS]}"


def _task(one: AskedTask) -> str:
    shots = _UNKNOWN if one.num_fewshot is None else str(one.num_fewshot)
    fields = {
        "v": _encoded(one.version) or _UNKNOWN,
        "shots": shots,
        "seed": "" if one.fewshot_seed is None else str(one.fewshot_seed),
        "n": f"{one.n}/{one.n_total or _UNKNOWN}",
        "docs": _encoded(one.documents[:_DIGITS]) or _UNKNOWN,
        "prompts": _encoded(one.prompts[:_DIGITS]) or _UNKNOWN,
        "template": "/".join(
            dict.fromkeys(
                _encoded(template.partition("#")[2][:_DIGITS] or template) or _UNKNOWN
                for template in (one.base_template, one.candidate_template)
            )
        )
        if one.base_template or one.candidate_template
        else "",
        "data": _at_commit(one.dataset, one.revision) if one.dataset else "",
    }
    return ",".join(
        [_encoded(one.task), *(f"{key}={value}" for key, value in fields.items() if value)]
    )


def _model(side: RunIdentity) -> str:
    """``name@commit#digest``; the commit where the model is one of the hub."""
    name = _at_commit(side.model or side.name, side.revision)
    return f"{name}#{_encoded(side.digest[:_DIGITS])}"


def _at_commit(name: str, commit: str) -> str:
    return _encoded(name) + (f"@{_encoded(commit[:_DIGITS])}" if commit else "")


def _batches(report: CompareReport) -> str:
    """How many sequences, or padded tokens, each pass had, of base and candidate."""
    sides = (("base", report.base), ("candidate", report.candidate))
    return "/".join(dict.fromkeys(_batch(report, side, name) for name, side in sides))


def _batch(report: CompareReport, side: RunIdentity, name: str) -> str:
    computed = side.computation
    if not computed:
        recorded = report.environment.get(name)
        computed = recorded if isinstance(recorded, Mapping) else {}
    if computed.get("token_budget"):
        return _encoded(f"{computed['token_budget']}tokens")
    size = computed.get("batch_size")
    return _UNKNOWN if size is None else _encoded(str(size))


def _gate(report: CompareReport) -> str:
    gate = report.gate
    margin = gate.margin_text or f"{gate.margin:.6g} sigma"
    confidence = f"{100 * gate.confidence:.6g}%"
    return ",".join(map(_encoded, (gate.fail_on, margin.replace(" ", ""), confidence)))


def _package(report: CompareReport, name: str) -> str:
    """A package's version of the base's process, else of the one that compared."""
    places = (report.environment.get("base"), report.environment)
    for environment in places:
        packages = environment.get("packages") if isinstance(environment, Mapping) else None
        version = packages.get(name) if isinstance(packages, Mapping) else None
        if version is None and isinstance(environment, Mapping):
            version = environment.get(f"{name}_version")
        if version is not None:
            return _encoded(str(version))
    return ""


def _joined(found: Iterable[str]) -> str:
    """All that the runs have, each once; the parts are encoded."""
    return "&".join(dict.fromkeys(part for part in found if part)) or _UNKNOWN


def _encoded(text: str) -> str:
    return quote(text[:_LONGEST], safe=_SAFE, errors="replace")
