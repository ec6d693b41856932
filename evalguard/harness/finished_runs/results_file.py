"""Results: what the results file of a run declares and reports."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

from evalguard.core.scores import PERPLEXITIES
from evalguard.core.settings import Value
from evalguard.errors import EvaluationError
from evalguard.harness.finished_runs.answer_choosing import Choosing
from evalguard.harness.finished_runs.foreign_json import read_file
from evalguard.harness.task_data import describe_data, describe_scoring

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
        found: dict[str, None] = {}
        seen: set[str] = set()
        waiting = [name]
        while waiting:
            current = waiting.pop(0)
            if current in seen:  # a group that contains itself
                continue
            seen.add(current)
            if current in known:
                found[current] = None
            elif children := groups.get(current):
                waiting[:0] = map(str, children)
            else:
                found |= {task: None for task in known if fnmatchcase(task, current)}
        return tuple(found)

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
        found: dict[str, str | None] = {}
        for one in declared:
            steps = one.get("filter") if isinstance(one, dict) else None
            if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
                continue
            looking = [at for at, step in enumerate(steps) if step.get("function") in _EXTRACTING]
            after = steps[looking[-1] + 1 :] if looking else steps
            if all(step.get("function") in _KEEPING for step in after):
                last = steps[looking[-1]] if looking else {"fallback": None}
                fallback = last.get("fallback", "[invalid]")
                found[str(one.get("name"))] = None if fallback is None else str(fallback)
        return found

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
    head, found, rest = text.partition("def ")
    if found and not head.strip(" \n@"):
        return rest.partition("(")[0].strip()
    return text.strip().partition("\n")[0][:60]
