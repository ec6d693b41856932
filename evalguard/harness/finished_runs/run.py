"""StoredRun: a finished lm-eval run, read back and checked."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from evalguard.core.document_fields import DocumentFields
from evalguard.core.documents.columns import DocumentColumns, Rows, Texts
from evalguard.core.scores import NotCompared, ScoreTable
from evalguard.core.settings import Value
from evalguard.core.task_group import GroupMetric, TaskGroup
from evalguard.errors import UsageError, nearest
from evalguard.harness.finished_runs.files import RunFiles, dates_with_task, find_run
from evalguard.harness.finished_runs.origin import RunOrigin
from evalguard.harness.finished_runs.results import Results
from evalguard.harness.finished_runs.tables import read_task

Reported = Mapping[tuple[str, str, str], tuple[float, float | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LmEvalRun:
    """A finished lm-eval run.

    Attributes:
        path: the results file.
        model_name, model_args: as lm-eval recorded them.
        date: from the file name, else when the run started; "" where unknown.
        tables: one per (task, filter, metric) that can be compared.
        not_compared: every other metric, with the reason.
        groups: groups that were asked for, and what is aggregated over their tasks.
        fields: task -> texts and whole numbers of its documents, which may say what they share.
        documents: task -> what was asked and answered (``samples.TaskSamples``).
        notes: what was chosen among several, what lies there and was not read.
        reported: (task, filter, metric) -> lm-eval's own value and standard error (None: none).
        environment: how the run was made, as far as it was recorded.
        origin: which model answered; None: nobody looked.
        lost: what the run scored, or should have, and has no scores of documents for, with the
            reason; a metric is lm-eval's placeholder "bypass" where none was scored.
    """

    path: Path
    model_name: str
    model_args: Mapping[str, Value]
    date: str
    tables: tuple[ScoreTable, ...]
    not_compared: tuple[NotCompared, ...] = ()
    groups: tuple[TaskGroup, ...] = ()
    fields: Mapping[str, DocumentFields] = field(default_factory=dict)
    documents: Mapping[str, Rows] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    reported: Reported = field(default_factory=dict)
    environment: Mapping[str, Value] = field(default_factory=dict)
    origin: RunOrigin | None = None
    lost: Mapping[tuple[str, str, str], str] = field(default_factory=dict)


def read_run(path: Path, *, tasks: Sequence[str] | None = None) -> LmEvalRun:
    """Read a finished lm-eval run made with ``--log_samples``.

    Args:
        path: the run's folder, the folder above it, or its results file.
        tasks: names of tasks, groups or wildcards to read; None or empty: all with samples.

    Raises:
        UsageError: if there is no such run, no samples, samples without hashes, or a task that
            the run does not have.
        EvaluationError: if a file is damaged, or samples and results are of different runs.
    """
    files = find_run(path)
    results = Results.read(files.results)
    environment = run_environment_of(results)
    chosen = _chosen(files, results, tasks or ())
    caveats = caveats_of(environment)
    read = [
        read_task(results, task, files.samples[task], source=str(path), caveats=caveats)
        for task in chosen
    ]
    reading = run_reading(results)
    tables = tuple(replace(table, reading=reading) for task in read for table in task.tables)
    groups, unusable = stored_groups(results, tables, tasks or ())
    return LmEvalRun(
        path=files.results,
        model_name=results.model_name,
        model_args=results.model_args,
        date=files.date or results.date,
        tables=tables,
        not_compared=(
            *(left_out for task in read for left_out in task.not_compared),
            *unusable,
        ),
        groups=groups,
        fields={task: of.fields for task, of in zip(chosen, read, strict=True)},
        documents={task: of.documents for task, of in zip(chosen, read, strict=True)},
        notes=files.notes,
        reported={of.key: results.reported(of.task, of.metric, of.filter) for of in tables},
        environment=environment,
        origin=RunOrigin.of(results),
        lost=dict(_lost(files, results, tasks or ())),
    )


def share_documents(base: LmEvalRun, candidate: LmEvalRun) -> None:
    """Keep in memory once what two runs' documents have in common, which is most of it."""
    for task, theirs in candidate.documents.items():
        ours = base.documents.get(task)
        if isinstance(theirs, DocumentColumns) and isinstance(ours, DocumentColumns):
            theirs.share(ours)
    tables = {table.key: table for table in base.tables}
    for table in candidate.tables:
        one = tables[table.key].asked_hashes if table.key in tables else ()
        if isinstance(table.asked_hashes, Texts) and isinstance(one, Texts):
            table.asked_hashes.share(one)


def _chosen(files: RunFiles, results: Results, names: Sequence[str]) -> tuple[str, ...]:
    # In the order of the results file, which lm-eval sorts, whatever the folder's order.
    known = dict.fromkeys(task for task in results.content["results"] if task in files.samples)
    known.update(dict.fromkeys(files.samples))
    if not names:
        return tuple(known)
    chosen: dict[str, None] = {}
    for name in names:
        found = results.expand(name, known)
        if not found:
            raise UsageError(
                f"the lm-eval run {files.results} has no samples of task '{name}'"
                f"{nearest(name, known)}",
                hint=_elsewhere(files, name) or f"it has: {', '.join(known)}",
            )
        chosen.update(dict.fromkeys(found))
    return tuple(chosen)


def _lost(
    files: RunFiles, results: Results, names: Sequence[str]
) -> Iterator[tuple[tuple[str, str, str], str]]:
    """Metrics that the results file has and no samples give, of the tasks that are asked."""
    children = results.content.get("group_subtasks") or {}
    groups = {name for name, of in children.items() if of}
    below = [str(task) for of in children.values() for task in of or ()]
    every = dict.fromkeys((*(results.content.get("configs") or {}), *below))
    tasks = {task: None for task in every if task not in groups}
    asked = {task for name in names for task in results.expand(name, tasks)} if names else tasks
    for task in tasks:
        if task not in asked:
            continue
        if task not in files.samples:
            reason = (
                f"{files.results.parent} has no samples file of it; run lm_eval once more with "
                "--log_samples, or leave the task out with --tasks"
            )
        elif results.without_scores(task):
            reason = (
                f"{files.results.parent} holds answers without scores (lm_eval --predict_only); "
                "run lm_eval once more without it"
            )
        else:
            continue
        for metric, filter_name in list(results.metrics(task)) or [("bypass", "none")]:
            yield (task, filter_name, metric), reason


def _elsewhere(files: RunFiles, task: str) -> str:
    dates = dates_with_task(files.results, task)
    return (
        f"the run of {dates[0]} in the same folder has it: give its results file" if dates else ""
    )


# How a stored run was made: what makes its scores doubtful, and where two runs differ.


_HALF = ("bfloat16", "float16", "half", "bf16", "fp16")

# What may differ between two runs without forbidding a comparison, and what that may do.
_EFFECTS = {
    "batch_size": "scores may differ by that alone",
    "max_length": "long documents may be cut at different places",
    "device": "scores may differ by that alone",
    "dtype": "",
    "softmax_dtype": "log-probabilities were rounded differently",
    "chat_template_sha": "",
    "system_instruction_sha": "",
    "lm_eval_version": "its tasks and scoring change between versions",
    "transformers_version": "",
}


_VERSIONS = ("lm_eval_version", "transformers_version")


def _plain(value: Value) -> str | None:
    return None if value is None else str(value).removeprefix("torch.")


def run_environment_of(results: Results) -> dict[str, Value]:
    """Return what is known about how a run was made, for reports."""
    config, content, arguments = results.config, results.content, results.model_args
    found: dict[str, Value] = {
        "model": config.get("model"),
        "dtype": config.get("model_dtype") or arguments.get("dtype"),
        "softmax_dtype": arguments.get("softmax_dtype"),
        "batch_size": config.get("batch_size"),
        "max_length": content.get("max_length") or arguments.get("max_length"),
        "device": config.get("device"),
        "use_cache": config.get("use_cache"),
        "limit": config.get("limit"),
        "chat_template_sha": content.get("chat_template_sha"),
        "system_instruction_sha": content.get("system_instruction_sha"),
        "lm_eval_version": content.get("lm_eval_version"),
        "transformers_version": content.get("transformers_version"),
    }
    return {name: value for name, value in found.items() if value is not None}


def run_reading(results: Results) -> dict[str, Value]:
    """Return what the token ids of a run follow from, which lm-eval does not store.

    lm-eval records its version since 0.4.9 or so; before 0.4.12 it added no BOS by itself.
    """
    content, arguments = results.content, results.model_args
    version = content.get("lm_eval_version")
    known = isinstance(version, str) and re.match(r"\d", version)
    found: dict[str, Value] = {
        "lm_eval": version if known else None,
        "add_bos_token": arguments.get("add_bos_token"),
        "prefix_token_id": arguments.get("prefix_token_id"),
        "prefix_token": _prefix_token(results),
        "max_length": content.get("max_length") or arguments.get("max_length"),
        "chat_template": content.get("chat_template_sha"),
        "system_instruction": content.get("system_instruction_sha"),
        "rolling_bos": "lm-eval",
        "finished": True,
    }
    return {name: value for name, value in found.items() if value is not None}


def _prefix_token(results: Results) -> Value:
    """The token that lm-eval puts before a text: BOS, or EOS where there is none."""
    for name in ("tokenizer_bos_token", "tokenizer_eos_token"):
        token = results.content.get(name)  # [text, id as text]
        if isinstance(token, list) and len(token) == 2 and str(token[1]) != "None":
            return f"{token[0]} ({token[1]})"
    return None


def caveats_of(environment: Mapping[str, Value]) -> tuple[str, ...]:
    """Say what in a run's making puts its scores in doubt, whatever it is compared with."""
    caveats = []
    if environment.get("use_cache"):
        caveats.append(
            "lm-eval's response cache (use_cache) was on: it does not tell models apart, so these "
            "may be another model's scores"
        )
    dtype = str(environment.get("dtype") or "")
    exact = str(environment.get("softmax_dtype") or "").endswith("float32")
    if any(name in dtype for name in _HALF) and not exact:
        caveats.append(
            f"log-probabilities were rounded to {dtype.removeprefix('torch.')} (softmax_dtype is "
            "not float32): noise of about 0.1 nats per document"
        )
    if str(environment.get("batch_size") or "").startswith("auto"):
        caveats.append("batch_size was auto: another run may have had other batches")
    return tuple(caveats)


def environment_differences(
    base: Mapping[str, Value], candidate: Mapping[str, Value]
) -> tuple[str, ...]:
    """Say where two runs were made differently in ways that pairing cannot see.

    Args:
        base, candidate: ``StoredRun.environment`` of each side, or the same of a model.
    """
    differences = []
    for name, effect in _EFFECTS.items():
        ours, theirs = (_plain(side.get(name)) for side in (base, candidate))
        unknown = None in (ours, theirs) and (name not in _VERSIONS or ours is theirs)
        if unknown or ours == theirs:
            continue
        ours, theirs = ours or "not recorded", theirs or "not recorded"
        tail = f": {effect}" if effect else ""
        differences.append(f"{name} is {ours} in the base run and {theirs} in the other{tail}")
    return tuple(differences)


# Groups of a stored lm-eval run: what its results file says they aggregate.


_SAME = 1e-9


def stored_groups(
    results: Results, tables: Sequence[ScoreTable], names: Sequence[str]
) -> tuple[tuple[TaskGroup, ...], tuple[NotCompared, ...]]:
    """Return the groups that were asked for, those inside them too, and what is left out.

    lm-eval stores a group's values and subtasks, and not how they are weighted: that is seen from
    the values.

    Args:
        tables: of the tasks that were read.
        names: what was asked for (groups, tasks, wildcards); empty: everything.
    """
    children = _children(results)
    sizes = _sizes(results, tables)
    groups: list[TaskGroup] = []
    left_out: list[NotCompared] = []
    for name in _requested_tasks(children, names):
        tasks, inner = _below(name, children)
        unread = [task for task in tasks if task not in sizes]
        if unread:
            reason = (
                f"no samples of {len(unread)} of its {len(tasks)} subtasks (first: {unread[0]})"
            )
            left_out += _unusable(results, name, reason)
            continue
        counted = _counted(name, children)
        metrics, odd = _metrics(results, name, counted, sizes)
        left_out += odd
        groups.append(
            TaskGroup(
                name=name,
                children=children[name],
                tasks=tasks,
                groups=inner,
                metrics=metrics,
                counted=counted if len(counted) > len(tasks) else (),
            )
        )
    return tuple(groups), tuple(left_out)


def _children(results: Results) -> dict[str, tuple[str, ...]]:
    """Direct children of every group; older versions list tasks there too, with none."""
    listed = results.content.get("group_subtasks") or {}
    return {name: tuple(map(str, inner)) for name, inner in listed.items() if inner}


def _sizes(results: Results, tables: Sequence[ScoreTable]) -> dict[str, int]:
    """Documents of each task that was read, as lm-eval counts them in its groups."""
    sizes: dict[str, int] = {}
    for table in tables:
        sizes[table.task] = max(table.n, sizes.get(table.task, 0))
    counts = results.content.get("n-samples") or {}
    for task in sizes:
        effective = (counts.get(task) or {}).get("effective")
        sizes[task] = effective if isinstance(effective, int) else sizes[task]
    return sizes


def _requested_tasks(children: Mapping[str, tuple[str, ...]], names: Sequence[str]) -> list[str]:
    if not names:
        return list(children)
    asked: dict[str, None] = {}
    for group in children:
        if any(group == name or fnmatchcase(group, name) for name in names):
            asked[group] = None
            asked.update(dict.fromkeys(_below(group, children)[1]))
    return list(asked)


def _below(
    name: str, children: Mapping[str, tuple[str, ...]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Leaf tasks and groups below a group, each once."""
    tasks: dict[str, None] = {}
    groups: dict[str, None] = {}
    waiting = list(children[name])
    while waiting:
        current = waiting.pop(0)
        if current not in children:
            tasks[current] = None
        elif current not in groups and current != name:  # a group may contain itself
            groups[current] = None
            waiting[:0] = children[current]
    return tuple(tasks), tuple(groups)


def _counted(
    name: str, children: Mapping[str, tuple[str, ...]], above: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    """Leaf tasks below a group, each as often as it stands there."""
    if name not in children:
        return (name,)
    if name in above:  # a group may contain itself
        return ()
    return tuple(
        task for child in children[name] for task in _counted(child, children, above | {name})
    )


def _metrics(
    results: Results, name: str, counted: Sequence[str], sizes: Mapping[str, int]
) -> tuple[tuple[GroupMetric, ...], list[NotCompared]]:
    found, odd = [], []
    for metric, filter_name in results.metrics(name):
        reported, _ = results.reported(name, metric, filter_name)
        values = [(task, results.reported(task, metric, filter_name)[0]) for task in counted]
        known = [(value, sizes[task]) for task, value in values if not math.isnan(value)]
        fitting = [
            by_size
            for by_size in (True, False)
            if known and math.isclose(_mean(known, by_size), reported, rel_tol=_SAME)
        ]
        if fitting:
            by_size = fitting[0] if len(fitting) == 1 else None
            found.append(GroupMetric(metric=metric, filters=(filter_name,), weight_by_size=by_size))
        else:
            reason = (
                "its reported value is not a mean of its subtasks', weighted by documents or not"
            )
            odd.append(NotCompared(task=name, filter=filter_name, metric=metric, reason=reason))
    return tuple(found), odd


def _mean(values: Sequence[tuple[float, int]], by_size: bool) -> float:
    """Mean of (value, documents), weighted by documents or not."""
    weights = [size if by_size else 1 for _, size in values]
    total = sum(weight * value for weight, (value, _) in zip(weights, values, strict=True))
    return total / sum(weights)


def _unusable(results: Results, name: str, reason: str) -> Iterator[NotCompared]:
    for metric, filter_name in results.metrics(name):
        yield NotCompared(task=name, filter=filter_name, metric=metric, reason=reason)
