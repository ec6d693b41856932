"""Results: what the results file of a run declares and reports."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

from evalguard.core.scores import PERPLEXITIES, GroupMetric, NotCompared, ScoreTable, TaskGroup
from evalguard.core.settings import Value
from evalguard.errors import EvaluationError
from evalguard.harness.finished_runs.foreign_json import read_file
from evalguard.harness.finished_runs.line_answers import Choosing
from evalguard.harness.surroundings import describe_data, describe_scoring

# Aggregations and directions of lm-eval's registry, for results files that do not name them.
_USUAL_AGGREGATION = {
    "acc": "mean",
    "acc_norm": "mean",
    "acc_mutual_info": "mean",
    "acc_bytes": "mean",
    "exact_match": "mean",
    "perplexity": "perplexity",
    "word_perplexity": "weighted_perplexity",
    "byte_perplexity": "weighted_perplexity",
    "bits_per_byte": "bits_per_byte",
    "f1": "f1",
    "mcc": "matthews_corrcoef",
    "bleu": "bleu",
    "chrf": "chrf",
    "chrf++": "chrf++",
    "ter": "ter",
    "brier_score": "brier_score",
}
_LOWER_IS_BETTER = PERPLEXITIES | {"ter", "brier_score"}
# Filters of lm-eval that look for an answer, and those that leave a fallback as it is, but for
# case and blanks: a majority of fallbacks is one, too.
_EXTRACTING = frozenset({"regex", "multi_choice_regex"})
_KEEPING = frozenset(
    {"remove_whitespace", "lowercase", "uppercase", "majority_vote", "take_first", "take_first_k"}
)
# What lm-eval writes under these keys: a mapping from tasks or options to values of this shape.
_SECTIONS: Mapping[str, type | tuple[type, ...]] = {
    "results": dict,
    "config": object,
    "configs": dict,
    "group_subtasks": list,
    "versions": object,
    "n-shot": object,
    "n-samples": dict,
    "higher_is_better": dict,
}


@dataclass(frozen=True, slots=True)
class Results:
    """The content of one results file, with the answers that tables need."""

    path: Path
    content: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read a results file.

        Raises:
            EvaluationError: if it is not whole.
        """
        content = read_file(path)
        if not isinstance(content, dict) or not isinstance(content.get("results"), dict):
            raise EvaluationError(f"{path}: no lm-eval results file: it has no 'results'")
        for section, inner in _SECTIONS.items():
            _require_shape(content.get(section), dict, f"{path}: '{section}'")
            for name, entry in (content.get(section) or {}).items():
                _require_shape(entry, inner, f"{path}: '{section}' of '{name}'")
        config = content.get("config") or {}
        _require_shape(config.get("model_args"), (dict, str), f"{path}: 'model_args'")
        for name in ("limit", "fewshot_seed"):
            _require_shape(config.get(name), (int, float), f"{path}: '{name}'")
        for task, shots in (content.get("n-shot") or {}).items():
            _require_shape(shots, int, f"{path}: 'n-shot' of '{task}'")
        for task, declared in (content.get("configs") or {}).items():
            metrics = (declared or {}).get("metric_list")
            _require_shape(metrics, list, f"{path}: 'metric_list' of '{task}'")
            for entry in metrics or ():
                _require_shape(entry or "", dict, f"{path}: an entry of 'metric_list' of '{task}'")
        return cls(path, content)

    @property
    def config(self) -> Mapping[str, Any]:
        """What the run was started with."""
        return cast("Mapping[str, Any]", self.content.get("config") or {})

    @property
    def model_name(self) -> str:
        """Name or path of the model, as lm-eval recorded it."""
        named = self.content.get("model_name")
        return str(named or self.model_args.get("pretrained") or self.config.get("model") or "")

    @property
    def model_args(self) -> dict[str, Value]:
        """Arguments of the model."""
        given = self.config.get("model_args") or {}
        if isinstance(given, str):
            pairs = (item.partition("=") for item in given.split(",") if item)
            return {name.strip(): value.strip() for name, _, value in pairs}
        return dict(given)

    @property
    def date(self) -> str:
        """When the run started, ISO 8601 in UTC, or ""."""
        started = self.content.get("date")
        if not isinstance(started, (int, float)):
            return ""
        return datetime.fromtimestamp(started, timezone.utc).isoformat(timespec="seconds")

    def expand(self, name: str, known: Mapping[str, object]) -> tuple[str, ...]:
        """Tasks with samples that a task's, a group's or a wildcard's name stands for."""
        groups = self.content.get("group_subtasks") or {}
        tasks: dict[str, None] = {}
        seen: set[str] = set()
        waiting = [name]
        while waiting:
            current = waiting.pop(0)
            if current in seen:  # a group that contains itself
                continue
            seen.add(current)
            if current in known:
                tasks[current] = None
            elif children := groups.get(current):
                waiting[:0] = map(str, children)
            else:
                tasks |= {task: None for task in known if fnmatchcase(task, current)}
        return tuple(tasks)

    def metrics(self, task: str) -> Iterator[tuple[str, str]]:
        """(metric, filter) of every value that is reported for a task, in lm-eval's order."""
        for key in self.content["results"].get(task) or {}:
            metric, comma, filter_name = key.rpartition(",")
            if comma and not metric.endswith("_stderr"):
                yield metric, filter_name

    def reported(self, task: str, metric: str, filter_name: str) -> tuple[float, float | None]:
        """A metric's value and standard error; NaN and None where it is not a number."""
        values = self.content["results"].get(task) or {}
        value = _number(values.get(f"{metric},{filter_name}"))
        stderr = _number(values.get(f"{metric}_stderr,{filter_name}"))
        return value, None if math.isnan(stderr) else stderr

    def aggregation(self, task: str, metric: str) -> tuple[str, bool]:
        """How documents combine, and whether that was declared rather than supposed.

        A Python function is recorded as its source text: its name is returned.
        """
        for entry in self._task_config(task).get("metric_list") or ():
            if entry.get("metric") == metric and entry.get("aggregation"):
                return _function_name(str(entry["aggregation"])), True
        usual = _USUAL_AGGREGATION.get(metric)
        return (usual, True) if usual else ("mean", False)

    def direction(self, task: str, metric: str) -> bool | None:
        """Whether higher is better; None where that was not declared."""
        declared = ((self.content.get("higher_is_better") or {}).get(task) or {}).get(metric)
        if declared is not None:
            return bool(declared)
        return metric not in _LOWER_IS_BETTER if metric in _USUAL_AGGREGATION else None

    def takes_first_answers(self, task: str, filter_name: str) -> bool:
        """Whether a filter of generated answers only takes the first one of each request."""
        config = self._task_config(task)
        if config.get("output_type") != "generate_until":
            return False
        chains = {
            entry.get("name"): [step.get("function") for step in entry.get("filter") or ()]
            for entry in config.get("filter_list") or ()
            if isinstance(entry, dict)
        }
        return chains.get(filter_name, ["take_first"]) == ["take_first"]

    def n_total(self, task: str) -> int:
        """Documents the task has, 0 where unknown."""
        counts = (self.content.get("n-samples") or {}).get(task) or {}
        original = counts.get("original")
        return original if isinstance(original, int) else 0

    def scored(self, task: str) -> tuple[int, bool]:
        """Documents that were scored, 0 where unknown; and whether lm-eval counted them.

        Up to 0.4.9 or so it wrote the size of the task where a selection (--samples) was scored.
        """
        counted = (self.content["results"].get(task) or {}).get("sample_len")
        if isinstance(counted, int):
            return counted, True
        counts = (self.content.get("n-samples") or {}).get(task) or {}
        effective = counts.get("effective")
        return (effective if isinstance(effective, int) else 0), False

    def without_scores(self, task: str) -> bool:
        """Whether a task has nothing but lm-eval's placeholder of runs that only keep answers."""
        return {metric for metric, _ in self.metrics(task)} == {"bypass"}

    def run(self, task: str, n: int) -> dict[str, Value]:
        """What both runs must share, by the keys that the harness uses too.

        Args:
            n: documents that were scored.
        """
        config = self._task_config(task)
        shots = (self.content.get("n-shot") or {}).get(task)
        run: dict[str, Value] = {}
        if shots is not None:
            run["num_fewshot"] = shots
        if shots and self.config.get("fewshot_seed") is not None:
            run["fewshot_seed"] = self.config["fewshot_seed"]
        if self.n_total(task):
            run["limit"] = n if n < self.n_total(task) else "all"
        version = (self.content.get("versions") or {}).get(task)
        if version is not None:
            run["task_version"] = version
        if config.get("output_type"):
            run["output_type"] = config["output_type"]
        if config.get("output_type") == "generate_until" and config.get("generation_kwargs"):
            run["generation_kwargs"] = self.generation(task)
        return run

    def generation(self, task: str) -> Value:
        """Options by which a task's texts are generated; None where its config has none."""
        options = self._task_config(task).get("generation_kwargs")
        return cast("dict[str, Value] | None", options)

    def dataset(self, task: str) -> dict[str, Value]:
        """Where a task's documents come from, as its config says."""
        return describe_data(self._task_config(task))

    def scoring(self, task: str) -> dict[str, Value]:
        """How a task's answers are scored, as its config says; {} where the run has none."""
        config = self._task_config(task)
        return describe_scoring(config) if config else {}

    def fallbacks(self, task: str) -> dict[str, str | None]:
        """What each filter of a task gives where it finds nothing; None: it takes what there is.

        Filters with other steps than lm-eval's, or that map answers to others, are left out.
        """
        config = self._task_config(task)
        if config.get("output_type") != "generate_until":
            return {}
        declared = config.get("filter_list")
        if not isinstance(declared, list):
            return {"none": None}
        fallbacks: dict[str, str | None] = {}
        for entry in declared:
            steps = entry.get("filter") if isinstance(entry, dict) else None
            if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
                continue
            looking = [at for at, step in enumerate(steps) if step.get("function") in _EXTRACTING]
            after = steps[looking[-1] + 1 :] if looking else steps
            if all(step.get("function") in _KEEPING for step in after):
                last = steps[looking[-1]] if looking else {"fallback": None}
                fallback = last.get("fallback", "[invalid]")
                fallbacks[str(entry.get("name"))] = None if fallback is None else str(fallback)
        return fallbacks

    def output_type(self, task: str) -> str:
        """What a task asks for, as its config says; "" where the run does not."""
        return str(self._task_config(task).get("output_type") or "")

    def choosing(self, task: str) -> Choosing:
        """How a task's answers are chosen."""
        config = self._task_config(task)
        metrics = [entry.get("metric") for entry in config.get("metric_list") or ()]
        return Choosing(
            output_type=str(config.get("output_type") or ""),
            own_rules=bool(config.get("process_results")),
            delimiter=str(config.get("target_delimiter", " ")),
            doubled="acc_mutual_info" in metrics,
        )

    def _task_config(self, task: str) -> Mapping[str, Any]:
        return cast("Mapping[str, Any]", (self.content.get("configs") or {}).get(task) or {})


def _require_shape(value: object, shape: type | tuple[type, ...], where: str) -> None:
    if value is not None and not isinstance(value, shape):
        raise EvaluationError(
            f"{where} is a {type(value).__name__}: no results file of lm-eval",
            hint="the file was edited, or another program wrote it: make the run once more",
        )


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan


def _function_name(text: str) -> str:
    """Name of a function given by its source; any other text is a name already."""
    head, marker, rest = text.partition("def ")
    if marker and not head.strip(" \n@"):
        return rest.partition("(")[0].strip()
    return text.strip().partition("\n")[0][:60]


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
    metrics, odd = [], []
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
            metrics.append(
                GroupMetric(metric=metric, filters=(filter_name,), weight_by_size=by_size)
            )
        else:
            reason = (
                "its reported value is not a mean of its subtasks', weighted by documents or not"
            )
            odd.append(NotCompared(task=name, filter=filter_name, metric=metric, reason=reason))
    return tuple(metrics), odd


def _mean(values: Sequence[tuple[float, int]], by_size: bool) -> float:
    """Mean of (value, documents), weighted by documents or not."""
    weights = [size if by_size else 1 for _, size in values]
    total = sum(weight * value for weight, (value, _) in zip(weights, values, strict=True))
    return total / sum(weights)


def _unusable(results: Results, name: str, reason: str) -> Iterator[NotCompared]:
    for metric, filter_name in results.metrics(name):
        yield NotCompared(task=name, filter=filter_name, metric=metric, reason=reason)
