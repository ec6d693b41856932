"""CompareReport: everything a finished comparison has to say, as plain data for the reports."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from evalguard.core.across_tasks import AcrossTasks
from evalguard.core.comparison import Comparison
from evalguard.core.distribution_comparison import DistributionComparison
from evalguard.core.documents.broken_documents import BrokenDocument
from evalguard.core.reports.bisection import BisectReport
from evalguard.core.reports.findings import Finding, unstored
from evalguard.core.reports.generations import GenerationComparison
from evalguard.core.scores import NotCompared
from evalguard.core.settings import Value
from evalguard.core.shown_tokens import KlEstimate
from evalguard.core.stopping import SequentialRun
from evalguard.errors import StoreError

if TYPE_CHECKING:
    from evalguard.core.gate import GateResult


RunKind = Literal["model", "lm-eval run", "stored run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingState:
    """One setting of a run as it was evaluated.

    ``value`` is what was asked for, ``reference`` and ``candidate`` are the two values that the
    guard file declares, ``target`` says where it is applied, and ``effective`` is the value read
    back from the loaded model.
    """

    name: str
    value: Value
    reference: Value
    candidate: Value
    target: str
    effective: Value = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """One side of a comparison: what was scored, and under which identity.

    ``digest`` is the digest of everything that can change its scores. ``effective`` holds the
    setting values read back from the model (for a base without settings: {}), ``description`` is
    one line for people ("hf, 1.2M parameters, float32 on cpu" or the folder of an lm-eval run).
    ``folder`` holds the model's files on this machine; "" where it has none, or was built.
    """

    name: str
    digest: str
    kind: RunKind = "model"
    description: str = ""
    effective: Mapping[str, Value] = field(default_factory=dict)
    settings: tuple[SettingState, ...] = ()
    folder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareReport:
    """The finished comparison of two runs; the one input of every report.

    Attributes:
        comparisons: one per (task, filter, metric), in the order they are shown.
        gate: the policy's answer over all of them.
        exit_code: what the command ends with (0, 1, 3, 4, or 125 under ``--git-bisect``).
        created: UTC time as ISO 8601 text, given by the caller.
        command: the command line that made this report, "" for a call from Python.
        not_compared: metrics that were left out, each with the reason.
        findings: what every reader must see beside the verdict.
        broken_documents: on which the candidate, or both models, are broken, the worst kind first;
            at most the first hundred. The gate's limit of that name has their number.
        notes: what concerns the whole run, one line each.
        run_folder: where result.json and the samples lie; None where nothing was written.
        across_tasks: all gated metrics judged together; None, with ``across_tasks_reason``, where
            fewer than two are sums over documents.
        distributions: how the two models' distributions differ, one per task; () where that was
            not measured.
        kl_estimates: what servers' most probable tokens say about KL, one per task; () where not
            both sides show some.
        generations: how their generated answers differ, one per task that generates and whose
            answers both sides show.
        sequential: where a run that may stop early did; None in an ordinary run.
        bisect: which settings make the drift; None, with ``bisect_reason`` where one was to be
            expected, where there was no bisection.
        resources: what it took; None where nobody measured. No part of a report's equality.
        tracked: what became of the run at experiment trackers. No part of a report's equality.
        files: SHA-256, in hexadecimal digits, of each file of the run folder that holds documents,
            by its path in there; None where that is not known: nothing was written, or an earlier
            version did. No part of a report's equality.
        version: evalguard's own version.
    """

    base: RunIdentity
    candidate: RunIdentity
    comparisons: tuple[Comparison, ...]
    gate: GateResult
    exit_code: int
    created: str
    environment: Mapping[str, Value] = field(default_factory=dict)
    not_compared: tuple[NotCompared, ...] = ()
    findings: tuple[Finding, ...] = ()
    broken_documents: tuple[BrokenDocument, ...] = ()
    notes: tuple[str, ...] = ()
    command: str = ""
    run_folder: str | None = None
    across_tasks: AcrossTasks | None = None
    across_tasks_reason: str = ""
    distributions: tuple[DistributionComparison, ...] = ()
    kl_estimates: tuple[KlEstimate, ...] = ()
    generations: tuple[GenerationComparison, ...] = ()
    sequential: SequentialRun | None = None
    bisect: BisectReport | None = None
    bisect_reason: str = ""
    resources: Resources | None = field(default=None, compare=False)
    tracked: tuple[Sent, ...] = field(default=(), compare=False)
    files: Mapping[str, str] | None = field(default=None, compare=False)
    version: str = ""

    def with_unstored(self, text: str) -> CompareReport:
        """The report, with what could not be written or kept since it was made."""
        return replace(self, findings=(*self.findings, unstored(text)))


# The formats that a report can be written in, by name; ``evalguard.report.formats`` makes them.


Format = Literal["text", "json", "html", "markdown", "junit", "annotations"]
FORMATS: tuple[Format, ...] = get_args(Format)


# Resources: what a comparison took, in time, memory and tokens.


# preparing  reading guard file and tasks, building requests, whatever is not one of the others
# loading    a model
# scoring    models answering, and their distributions being compared
# comparing  metrics and statistics
PhaseName = Literal["preparing", "loading", "scoring", "comparing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Time spent in one phase, that of phases inside of it left out.

    ``models`` are the names of those that it is about: both where they are asked side by side.
    ``cpu_seconds`` are this process's, all threads together.
    """

    phase: PhaseName
    models: tuple[str, ...] = ()
    wall_seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCounts:
    """What one model answered.

    Attributes:
        documents: of all tasks; those of a task that asks in two ways count twice.
        kept: those of them whose answers were in the score cache.
        tokens: fed for the others, each request by itself; None where a model type hides them.
    """

    model: str
    documents: int
    kept: int
    tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a comparison took, up to its verdict; another run of the same takes something else.

    Attributes:
        wall_seconds, cpu_seconds: of this process, from the call of ``compare`` on.
        children_cpu_seconds: of processes that were started and have ended: workers, builds.
        peak_memory: largest resident set of this process so far, in bytes; None where the
            system does not say.
        worker_peak_memory: the same of the largest worker; None without one.
        device_peak_memory: most bytes that torch held on one CUDA device; None without one.
    """

    phases: tuple[Phase, ...]
    answers: tuple[AnswerCounts, ...]
    wall_seconds: float
    cpu_seconds: float
    children_cpu_seconds: float
    peak_memory: int | None = None
    worker_peak_memory: int | None = None
    device_peak_memory: int | None = None

    def seconds(self, phase: PhaseName) -> float:
        """Wall-clock seconds of a phase, over all models."""
        return sum(one.wall_seconds for one in self.phases if one.phase == phase)

    @property
    def tokens(self) -> int | None:
        """Tokens fed to all models; None where one of them hides them."""
        told = [one.tokens for one in self.answers if one.tokens is not None]
        return sum(told) if len(told) == len(self.answers) else None

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens fed per wall-clock second of scoring; None where nothing was fed."""
        seconds = self.seconds("scoring")
        return self.tokens / seconds if self.tokens and seconds > 0.0 else None

    @property
    def kept_share(self) -> float:
        """Share of the answered documents that came from the score cache; 0 without any."""
        documents = sum(one.documents for one in self.answers)
        return sum(one.kept for one in self.answers) / documents if documents else 0.0


# RunDocuments: what was asked and answered in one task of a finished run, document by document.


Side = Literal["base", "candidate"]
_DRIFT = "drift:"


@runtime_checkable
class PickedColumns(Protocol):
    """Columns that are not in memory as a whole."""

    def pick(self, positions: Sequence[int]) -> Mapping[str, Sequence[Any]]:
        """All columns of the documents at these positions."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDocuments:
    """One task's documents; plain data.

    Attributes:
        task: its name.
        columns: name to one value per document, in ascending document id. Of both sides:
            ``doc_id``, ``doc`` (JSON text), ``target``. Of each side, with the prefix ``base:`` or
            ``candidate:``: ``prompt``, ``scores`` (JSON text: filter, metric, lm-eval's item), and
            lists with one value per request: ``arguments`` (JSON text; null for a context that is
            the prompt), ``loglikelihood``, ``is_greedy``,
            ``text``, ``token_logprobs`` (a list per request, or None). A value is None where a side
            has no such document. ``drift:<filter>:<metric>``: what a document adds to the drift of
            a metric, see ``drifts``.
        tokens: name to one value per scored token, shape (positions,), in ascending document,
            request and position: ``doc_id``, ``request``, ``position``, ``token_id``,
            ``base_logprob``, ``candidate_logprob``, ``kl``, ``base_top``, ``candidate_top``,
            ``shared_top``, and ``text`` where a tokenizer was at hand; {} where distributions were
            not compared.
    """

    task: str
    columns: Mapping[str, Sequence[Any]]
    tokens: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.doc_ids)

    @property
    def doc_ids(self) -> Sequence[int]:
        """Ids of the documents, ascending."""
        return self.columns.get("doc_id", ())

    def of(self, side: Side, name: str) -> Sequence[Any]:
        """One side's column; None for every document where there is none of that name."""
        return self.columns.get(f"{side}:{name}") or (None,) * len(self)

    def scores(self, side: Side) -> list[Mapping[str, Mapping[str, Any]]]:
        """lm-eval's items of every document: filter to metric to item; {} where there are none.

        Raises:
            StoreError: they are damaged.
        """
        texts = self.of(side, "scores")
        return [{} if text is None else _items(text, self.task) for text in texts]

    def drifts(self, filter_: str, metric: str) -> Sequence[float | None] | None:
        """What each document adds to a metric's drift, in sigma, above 0 where it is worse.

        Their sum is sigma (to first order on a log scale). None for a document that was not
        compared, and for a metric that is not a sum over documents.
        """
        return self.columns.get(drift_column(filter_, metric))

    @property
    def drifting(self) -> tuple[tuple[str, str], ...]:
        """(filter, metric) of every metric that has ``drifts``; a filter's name has no colon."""
        named = (name.split(":", 2) for name in self.columns if name.startswith(_DRIFT))
        return tuple((filter_, metric) for _, filter_, metric in named)

    def mean_kl(self) -> list[float | None] | None:
        """Mean KL(base || candidate) over each document's scored tokens, in nats a token."""
        if not self.tokens:
            return None
        ids = np.asarray(self.doc_ids)
        place = np.searchsorted(ids, self.tokens["doc_id"])
        counts = np.bincount(place, minlength=ids.size)
        sums = np.bincount(place, weights=self.tokens["kl"], minlength=ids.size)
        return [
            float(total) / int(count) if count else None
            for total, count in zip(sums, counts, strict=True)
        ]

    def pick(self, positions: Sequence[int]) -> RunDocuments:
        """The documents at these positions, which ascend."""
        columns: Mapping[str, Sequence[Any]]
        if isinstance(self.columns, PickedColumns):
            columns = self.columns.pick(positions)
        else:
            columns = {name: [of[at] for at in positions] for name, of in self.columns.items()}
        tokens = dict(self.tokens)
        if tokens:
            own = np.isin(tokens["doc_id"], np.asarray(columns["doc_id"]))
            tokens = {name: values[own] for name, values in tokens.items()}
        return RunDocuments(task=self.task, columns=columns, tokens=tokens)

    def tokens_of(self, doc_id: int) -> Mapping[str, NDArray[Any]]:
        """The scored tokens of one document, shape (positions of it,)."""
        if not self.tokens:
            return {}
        start, end = np.searchsorted(self.tokens["doc_id"], [doc_id, doc_id + 1])
        return {name: values[start:end] for name, values in self.tokens.items()}


def drift_column(filter_: str, metric: str) -> str:
    """The name of the column with the drifts of a metric."""
    return f"{_DRIFT}{filter_}:{metric}"


def _items(text: Any, task: str) -> Mapping[str, Mapping[str, Any]]:
    try:
        found = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        found = None
    if not (isinstance(found, dict) and all(isinstance(one, dict) for one in found.values())):
        raise StoreError(
            f"the samples of task '{task}' are damaged: scores that are none",
            hint="compare again, or remove the file of these samples to do without it",
        )
    return found


# TrackedRun: a finished comparison as experiment trackers take it, and what became of it there.


SinkName = Literal["wandb", "trackio", "mlflow"]
SINK_TITLES: Mapping[SinkName, str] = {"wandb": "W&B", "trackio": "trackio", "mlflow": "MLflow"}
SINKS: tuple[SinkName, ...] = tuple(SINK_TITLES)
JobType = Literal["compare", "bisect", "nightly"]
# sent     it is where the sink keeps it
# offline  it is on this machine, whole, and a command sends it
# failed   it is nowhere but in the run folder
SentState = Literal["sent", "offline", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """What somebody should be told at once."""

    title: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedTable:
    """A table: names of columns, and rows of plain values (text, number, bool or None)."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """A run of a tracker; plain data, without secrets and without numbers that JSON cannot hold.

    Attributes:
        name: as people see it; ``group`` is what it belongs to (a night, a pull request), "" for
            nothing.
        config: what was asked for, nested.
        scalars: name to number, ``TASK/METRIC/sigma`` and the like.
        summary: name to what is not a number: outcomes, the sentence.
        tables, pages: name to table, and to a self-contained HTML page.
        files: paths of files to keep with the run, each with the name that it has there.
        alert: None where nothing is alarming.
    """

    name: str
    job_type: JobType
    group: str = ""
    tags: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)
    summary: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, TrackedTable] = field(default_factory=dict)
    pages: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    alert: Alert | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What became of a run at one sink.

    Attributes:
        place: its address, or the folder where it lies; "" where it is nowhere.
        next_command: what sends it after all; "" where nothing has to be sent, or can be.
        reason: why it was not sent; "" where it was.
    """

    sink: SinkName
    state: SentState
    place: str = ""
    next_command: str = ""
    reason: str = ""
