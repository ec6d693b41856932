"""A finished comparison as trackers take it: numbers, tables and files."""

from __future__ import annotations

import bisect
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from evalguard import tools
from evalguard.comparison.stored_run import open_documents
from evalguard.core.amounts import finite_or_none
from evalguard.core.compare_report import CompareReport, RunDocuments, Side
from evalguard.core.comparison import Comparison, InfluentialDocument
from evalguard.core.distribution_comparison import DistributionComparison
from evalguard.core.findings import without_quotes
from evalguard.core.redaction import redact_value, redacted_text
from evalguard.core.tracked_run import Alert, JobType, TrackedRun, TrackedTable
from evalguard.errors import StoreError
from evalguard.page.safe_text import printable
from evalguard.report.compare_document import compare_document
from evalguard.report.compare_html import render_forest_page
from evalguard.report.first_screen import shows_bisection
from evalguard.report.meaning import derive_meaning

_PULL_REQUEST = re.compile(r"refs/pull/(\d+)/")


@dataclass(frozen=True, slots=True, kw_only=True)
class CiOrigin:
    """What belongs together, and where to look it up; "" where nothing says so.

    Attributes:
        group: the pull or merge request, else the pipeline.
        commit: what was checked out.
        url: of the pipeline.
    """

    group: str = ""
    commit: str = ""
    url: str = ""


def read_origin(variables: Mapping[str, str]) -> CiOrigin:
    """Read it off the variables of GitHub Actions or GitLab CI."""
    if variables.get("GITHUB_ACTIONS"):
        return _github_origin(variables)
    if variables.get("GITLAB_CI"):
        return _gitlab_origin(variables)
    return CiOrigin()


def _github_origin(variables: Mapping[str, str]) -> CiOrigin:
    pull_request = _PULL_REQUEST.match(variables.get("GITHUB_REF", ""))
    run = variables.get("GITHUB_RUN_ID", "")
    repository = variables.get("GITHUB_REPOSITORY", "")
    server = variables.get("GITHUB_SERVER_URL", "")
    return CiOrigin(
        group=f"pull request {pull_request[1]}" if pull_request else f"workflow {run}",
        commit=variables.get("GITHUB_SHA", ""),
        url=f"{server}/{repository}/actions/runs/{run}" if server and repository and run else "",
    )


def _gitlab_origin(variables: Mapping[str, str]) -> CiOrigin:
    merge_request = variables.get("CI_MERGE_REQUEST_IID")
    pipeline = variables.get("CI_PIPELINE_ID", "")
    return CiOrigin(
        group=f"merge request {merge_request}" if merge_request else f"pipeline {pipeline}",
        commit=variables.get("CI_COMMIT_SHA", ""),
        url=variables.get("CI_PIPELINE_URL", ""),
    )


TrackedNumber = float | int | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedNumbers:
    """Finite ``scalars``; ``words`` are outcomes, and numbers that are infinite.

    Attributes:
        charts: names of the scalars that say how far the candidate is: drifts and mean KL.
    """

    scalars: Mapping[str, float]
    words: Mapping[str, str]
    charts: tuple[str, ...]


def collect_numbers(report: CompareReport) -> TrackedNumbers:
    """Return all numbers of a report that trend over runs, unrounded."""
    numbers: dict[str, TrackedNumber] = {}
    words: dict[str, str] = {}
    for comparison in report.comparisons:
        prefix = tracked_metric_name(comparison)
        numbers |= {f"{prefix}/{name}": value for name, value in _comparison_numbers(comparison)}
        words[f"{prefix}/outcome"] = comparison.outcome
    for distribution in report.distributions:
        task = distribution.task
        numbers |= {f"{task}/{name}": value for name, value in _distribution_numbers(distribution)}
    numbers |= dict(_report_numbers(report))
    there = {name: float(value) for name, value in numbers.items() if value is not None}
    words |= {name: str(value) for name, value in there.items() if not math.isfinite(value)}
    scalars = {name: value for name, value in there.items() if math.isfinite(value)}
    charts = tuple(name for name in _charts(report) if name in scalars)
    return TrackedNumbers(scalars=scalars, words=words, charts=charts)


def tracked_metric_name(comparison: Comparison) -> str:
    """ "lambada_openai/perplexity"; a filter follows the metric as lm-eval writes it."""
    named = comparison.filter not in ("", "none")
    filter_ = f",{comparison.filter}" if named else ""
    return f"{comparison.task}/{comparison.metric}{filter_}"


def _charts(report: CompareReport) -> Iterator[str]:
    for comparison in report.comparisons:
        # A base whose documents do not scatter has a drift in units of the metric alone.
        shown = "drift" if comparison.sigma is None else "sigma"
        yield f"{tracked_metric_name(comparison)}/{shown}"
    for distribution in report.distributions:
        yield f"{distribution.task}/kl_mean"


def _comparison_numbers(comparison: Comparison) -> Iterator[tuple[str, TrackedNumber]]:
    for name in ("base", "base_stderr", "candidate", "candidate_stderr", "sigma"):
        yield name, getattr(comparison, name)
    low, high = comparison.sigma_interval or (None, None)
    yield "sigma_low", low
    yield "sigma_high", high
    # In units of the metric: known of a base, too, whose documents do not scatter.
    low, high = comparison.drift_interval or (None, None)
    yield "drift", comparison.drift
    yield "drift_low", low
    yield "drift_high", high
    for name in ("paired_stderr", "p_value", "bh_q_value", "n_used", "same_answer", "churn"):
        yield name, getattr(comparison, name)
    lost, won = comparison.flips or (None, None)
    yield "flips_lost", lost
    yield "flips_won", won


def _distribution_numbers(
    distribution: DistributionComparison,
) -> Iterator[tuple[str, TrackedNumber]]:
    yield "kl_mean", distribution.kl.value
    yield "kl_stderr", distribution.kl.stderr
    yield "kl_p99", distribution.kl_at(99).value
    yield "kl_max", distribution.kl_at(100).value
    yield "dp_rms", distribution.dp_rms.value
    yield "same_top1", distribution.same_top1.value


def _report_numbers(report: CompareReport) -> Iterator[tuple[str, TrackedNumber]]:
    yield "gate/passed", report.gate.passed
    yield "gate/exit_code", report.exit_code
    if report.resources is not None:
        yield "resources/wall_seconds", report.resources.wall_seconds
    if shows_bisection(report):
        yield from tools.fetch("bisection_numbers")(report.bisect).items()


_METRIC_COLUMNS = (
    "task", "metric", "filter", "documents", "base", "candidate", "sigma", "sigma_low",
    "sigma_high", "p_value", "outcome",
)  # fmt: skip
_DISTRIBUTION_COLUMNS = (
    "task", "documents", "positions", "kl_mean", "kl_low", "kl_high", "kl_p99", "kl_max", "dp_rms",
    "same_top1", "exact",
)  # fmt: skip


def build_tables(report: CompareReport, *, documents: bool) -> dict[str, TrackedTable]:
    """Return the tables by name; none without rows.

    Args:
        documents: with what was asked and answered.
    """
    moved = list_moved_documents(report) if documents else _moved_numbers(report)
    tables = {
        "metrics": _metrics_table(report),
        "distributions": _distributions_table(report),
        "moved_documents": moved,
    }
    if shows_bisection(report):
        tables |= tools.fetch("bisection_tables")(report.bisect)
    return {name: table for name, table in tables.items() if table.rows}


def _metrics_table(report: CompareReport) -> TrackedTable:
    rows = []
    for comparison in report.comparisons:
        low, high = comparison.sigma_interval or (None, None)
        values = (
            comparison.base,
            comparison.candidate,
            comparison.sigma,
            low,
            high,
            comparison.p_value,
        )
        cells = map(finite_or_none, values)
        rows.append(
            (
                comparison.task,
                comparison.metric,
                comparison.filter,
                comparison.n_used,
                *cells,
                comparison.outcome,
            )
        )
    return TrackedTable(columns=_METRIC_COLUMNS, rows=tuple(rows))


def _distributions_table(report: CompareReport) -> TrackedTable:
    """A row for each task whose distributions were compared."""
    rows = []
    for drift in report.distributions:
        if drift.failure:
            continue
        low, high = drift.kl.interval or (None, None)
        values = (
            drift.kl.value, low, high, drift.kl_at(99).value, drift.kl_at(100).value,
            drift.dp_rms.value, drift.same_top1.value,
        )  # fmt: skip
        cells = map(finite_or_none, values)
        rows.append((drift.task, drift.n, drift.positions, *cells, drift.exact))
    return TrackedTable(columns=_DISTRIBUTION_COLUMNS, rows=tuple(rows))


_DOCUMENT_COLUMNS = (
    "task", "metric", "document", "sigma", "share", "base score", "candidate score", "prompt",
    "target", "base answer", "candidate answer",
)  # fmt: skip
_LONGEST_TEXT = 2_000
DocumentsByTask = Mapping[str, RunDocuments | None]


def list_moved_documents(report: CompareReport) -> TrackedTable:
    """Return one row for each document that a metric's influence names.

    What was asked and answered is there where the run folder holds it.
    """
    named = [
        (c, document)
        for c in report.comparisons
        if c.influence
        for document in c.influence.documents
    ]
    documents = _open_documents(report, [document.task for _, document in named])
    rows = [
        _document_row(comparison, document, documents.get(document.task))
        for comparison, document in named
    ]
    return TrackedTable(columns=_DOCUMENT_COLUMNS, rows=tuple(rows))


def _moved_numbers(report: CompareReport) -> TrackedTable:
    """The same without a word of any document."""
    rows = [
        (document.task, c.metric, document.doc_id, document.contribution, document.share)
        for c in report.comparisons
        if c.influence
        for document in c.influence.documents
    ]
    return TrackedTable(columns=_DOCUMENT_COLUMNS[:5], rows=tuple(rows))


def _open_documents(report: CompareReport, tasks: Sequence[str]) -> DocumentsByTask:
    read = open_documents(report)
    by_task: dict[str, RunDocuments | None] = {}
    for task in dict.fromkeys(tasks):
        try:
            by_task[task] = read(task)
        except (StoreError, OSError):  # a table without texts; whoever reads the folder is told
            by_task[task] = None
    return by_task


def _document_row(
    comparison: Comparison, one: InfluentialDocument, documents: RunDocuments | None
) -> tuple[Any, ...]:
    index = None if documents is None else _document_index(documents, one.doc_id)
    start = (one.task, comparison.metric, one.doc_id, one.contribution, one.share)
    if documents is None or index is None:
        return (*start, "", "", "", "", "", "")
    return (
        *start,
        _score_text(documents, "base", index, comparison),
        _score_text(documents, "candidate", index, comparison),
        _shorten(documents.of("base", "prompt")[index]),
        _shorten(documents.columns["target"][index]),
        _answers_text(documents, "base", index),
        _answers_text(documents, "candidate", index),
    )


def _document_index(documents: RunDocuments, doc_id: int) -> int | None:
    index = bisect.bisect_left(documents.doc_ids, doc_id)
    there = index < len(documents) and documents.doc_ids[index] == doc_id
    return index if there else None


def _score_text(documents: RunDocuments, side: Side, index: int, comparison: Comparison) -> str:
    text = documents.of(side, "scores")[index]
    if text is None:
        return ""
    item = json.loads(text).get(comparison.filter, {}).get(comparison.metric)
    return "" if item is None else _shorten(json.dumps(item))


def _answers_text(documents: RunDocuments, side: Side, index: int) -> str:
    """What a side generated, else the log-likelihoods that it gave."""
    texts = documents.of(side, "text")[index] or ()
    generated = [text for text in texts if text is not None]
    if generated:
        return _shorten(" | ".join(generated))
    scores = documents.of(side, "loglikelihood")[index] or ()
    return ", ".join("" if score is None else f"{score:.4f}" for score in scores)[:_LONGEST_TEXT]


def _shorten(value: object) -> str:
    return "" if value is None else printable(str(value)[:_LONGEST_TEXT])


# What people look into later; the tokens of all documents may be gigabytes.
_FILE_PATTERNS = ("result.json", "report.html", "junit.xml", "samples/*.parquet")
LARGEST_FILE = 100_000_000
_LONGEST_TAG = 64


def build_tracked_run(
    report: CompareReport,
    *,
    documents: bool = False,
    job_type: JobType | None = None,
    group: str | None = None,
) -> TrackedRun:
    """Return what is sent of a report.

    Args:
        documents: with prompts and answers, and the files of the run folder, which hold them;
            else figures, tables and plots alone.
        job_type: None: "bisect" where it holds a bisection, else "compare".
        group: None: the pull request or pipeline that CI's variables name.
    """
    report = report if documents else without_quotes(report)
    numbers = collect_numbers(report)
    files = _files_to_send(report) if documents else {}
    left_out = _files_too_large(report) if documents else []
    notes = "\n".join(redacted_text(finding.line) for finding in report.findings)
    summary = {
        **numbers.words,
        "state": report.gate.state,
        "sentence": redacted_text(derive_meaning(report).sentence),
        **({"notes": notes} if notes else {}),
        **({"bisect/status": report.bisect.status} if shows_bisection(report) else {}),
        **({"files left out": ", ".join(left_out)} if left_out else {}),
    }
    return TrackedRun(
        name=printable(f"{report.base.name} vs {report.candidate.name}"),
        job_type=job_type or ("bisect" if report.bisect is not None else "compare"),
        group=read_origin(os.environ).group if group is None else group,
        tags=_run_tags(report),
        config=_run_config(report),
        scalars=numbers.scalars,
        charts=numbers.charts,
        summary=summary,
        tables=build_tables(report, documents=documents),
        pages={"forest": render_forest_page(report)} if report.comparisons else {},
        files=files,
        alert=_gate_alert(report),
    )


def _run_config(report: CompareReport) -> dict[str, Any]:
    """Both variants with their settings, the gate and the environment, without secrets."""
    whole = compare_document(report)
    gate = report.gate
    where = read_origin(os.environ)
    config = {
        "base": whole["base"],
        "candidate": whole["candidate"],
        "tasks": list(dict.fromkeys(c.task for c in report.comparisons)),
        "gate": {
            "margin": gate.margin,
            "margin_text": gate.margin_text,
            "fail_on": gate.fail_on,
            "confidence": gate.confidence,
        },
        "environment": whole["environment"],
        "command": report.command,
        "created": report.created,
        "evalguard": report.version,
        "run_folder": report.run_folder or "",
        "commit": where.commit,
        "pipeline": where.url,
    }
    return cast("dict[str, Any]", redact_value(config))


def _run_tags(report: CompareReport) -> tuple[str, ...]:
    names = (report.gate.state, report.base.name, report.candidate.name)
    return tuple(dict.fromkeys(printable(name)[:_LONGEST_TAG] for name in names if name))


def _gate_alert(report: CompareReport) -> Alert | None:
    if report.gate.state != "regressed":
        return None
    title = printable(f"{report.candidate.name} regressed against {report.base.name}")
    return Alert(title=title, text=redacted_text(derive_meaning(report).sentence))


def _files_to_send(report: CompareReport) -> dict[str, str]:
    return {
        name: str(path.absolute())
        for name, path in _existing_files(report)
        if path.stat().st_size <= LARGEST_FILE
    }


def _files_too_large(report: CompareReport) -> list[str]:
    return [name for name, path in _existing_files(report) if path.stat().st_size > LARGEST_FILE]


def _existing_files(report: CompareReport) -> list[tuple[str, Path]]:
    if report.run_folder is None:
        return []
    folder = Path(report.run_folder)
    paths = [path for pattern in _FILE_PATTERNS for path in sorted(folder.glob(pattern))]
    return [(str(path.relative_to(folder)), path) for path in paths]
