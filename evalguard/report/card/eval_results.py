"""``.eval_results/*.yaml``: results of the hub's registered benchmarks, for their leaderboards.

The form is that of https://huggingface.co/docs/hub/eval-results. A dataset has to be a benchmark of
the hub, and a task one of its ``eval.yaml``; anything else is published by ``model-index``. The
form names no scale, and its two examples are of two (20.90 of HLE, 0.412 of GPQA). Published
results of the benchmarks below are in per cent: GSM8K 96.8
(huggingface.co/blog/eee-community-evals), MMLU-Pro 72.3 (the hub's skill for community evals).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from evalguard.core.comparison import Comparison
from evalguard.core.reports.asked_task import AskedTask
from evalguard.core.reports.compare_report import CompareReport
from evalguard.errors import UsageError
from evalguard.report.card.conditions_line import conditions_line
from evalguard.report.card.documents_asked import asked_in_part, list_tasks
from evalguard.report.card.quoted_yaml import quoted_yaml
from evalguard.report.words.metric_labels import metric_label
from evalguard.report.words.plain_text import printable
from evalguard.report.words.shown_subtasks import judged_comparisons

RESULTS_FOLDER = ".eval_results"
# (dataset, config or "" for any) to the id of the task; of the hub's benchmarks of 2026 those that
# lm-eval asks: hub-docs (docs/hub/eval-results.md) and huggingface.co/blog/eee-community-evals.
_BENCHMARKS = {
    ("Idavidrein/gpqa", "gpqa_diamond"): "gpqa_diamond",
    ("openai/gsm8k", ""): "gsm8k",
    ("gsm8k", ""): "gsm8k",
    ("TIGER-Lab/MMLU-Pro", ""): "mmlu_pro",
}
_OWN_NAMES = {"gsm8k": "openai/gsm8k"}  # of datasets that have moved into an organisation
_METRICS = frozenset({"acc", "exact_match"})


def render_eval_results(report: CompareReport) -> str:
    """Return the entries as YAML: benchmarks asked whole, one value each, in per cent.

    Raises:
        UsageError: no task is one of the benchmarks, or documents were left out.
    """
    if asked_in_part(report):
        raise UsageError(
            f"{RESULTS_FOLDER} is for leaderboards, and this run left documents out",
            hint="compare without --limit, --sample and --sequential; model-index takes any run: "
            "-o FILE.yaml",
        )
    entries = list(_entries(report))
    if not entries:
        known = ", ".join(dict.fromkeys(_OWN_NAMES.get(name, name) for name, _ in _BENCHMARKS))
        raise UsageError(
            f"no task of this run is one of the hub's benchmarks ({known})",
            hint="model-index takes any task: -o FILE.yaml",
        )
    said = ["Made by evalguard card; values in per cent.", conditions_line([report])]
    return quoted_yaml(entries, comments=said)


def _entries(report: CompareReport) -> Iterator[dict[str, Any]]:
    """One entry a benchmark: of several metrics the first that it can be."""
    tasks = {one.task: one for one in list_tasks(report)}
    seen: set[str] = set()
    for comparison in judged_comparisons(report):
        asked = tasks.get(comparison.task)
        value = comparison.candidate
        if asked is None or comparison.metric not in _METRICS or value is None:
            continue
        task = _BENCHMARKS.get((asked.dataset, asked.config)) or _BENCHMARKS.get(
            (asked.dataset, "")
        )
        if task is None or task in seen or not 0.0 <= value <= 1.0:
            continue
        seen.add(task)
        yield _entry(report, comparison, asked, task)


def _entry(
    report: CompareReport, comparison: Comparison, asked: AskedTask, task: str
) -> dict[str, Any]:
    dataset = {"id": _OWN_NAMES.get(asked.dataset, asked.dataset), "task_id": task}
    if asked.revision:
        dataset["revision"] = asked.revision
    shots = "" if asked.num_fewshot is None else f"{asked.num_fewshot}-shot, "
    how = f"{shots}lm-eval {printable(comparison.task)}, {metric_label(comparison)}"
    return {
        "dataset": dataset,
        "value": round(100.0 * (comparison.candidate or 0.0), 4),
        "date": report.created[:10],
        "notes": how,
    }
