"""CompareReport: everything a finished comparison has to say, as plain data for the reports."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from evalguard.core.broken_documents import BrokenDocument
from evalguard.core.comparison import Comparison, SequentialRun
from evalguard.core.distribution_comparison import DistributionComparison
from evalguard.core.findings import Finding, unstored
from evalguard.core.generation_comparison import GenerationComparison
from evalguard.core.scores import NotCompared, ScoreTable
from evalguard.core.settings import Value
from evalguard.core.shown_tokens import KlEstimate
from evalguard.core.tracked_run import Sent
from evalguard.errors import StoreError

if TYPE_CHECKING:
    from evalguard.core.gate import GateResult

_DIGITS = 16
_UNVERSIONED = "Yaml"  # ``ConfigurableTask.VERSION`` of lm-eval, of a task that declares none
NO_VERSION = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTask:
    """A task as both sides were asked it; what is not known is None or "".

    Attributes:
        n: documents that were asked, of ``n_total`` (0: not known).
        version: that the task declares; "none": it declares none.
        output_type: lm-eval's kind of request: loglikelihood, multiple_choice, generate_until ...
        num_fewshot: examples in each prompt, and ``fewshot_seed`` by which they were drawn.
        dataset: where the documents come from, an id of the hub; "" for data of one's own.
            ``config``, ``split`` and ``revision`` (a commit) are those of the dataset.
        documents: digest over the ids and contents of the documents.
        prompts: digest over the base's prompts, few-shot examples and templates included.
        base_template, candidate_template: by which chat template each side's prompts were made,
            as SOURCE#DIGEST (sha256 of its text): tokenizer, argument or a name, of
            ``chat_template_args``; lm-eval of a finished run; server where a server has its own.
            "" for none.
        candidate_template: the candidate's.
        n_total: documents that the task has.
        fewshot_seed: None where there are no examples.
        config: name of the dataset's part.
        split: of the dataset.
        revision: commit of the dataset.
    """

    task: str
    n: int
    n_total: int = 0
    version: str = ""
    output_type: str = ""
    num_fewshot: int | None = None
    fewshot_seed: int | None = None
    dataset: str = ""
    config: str = ""
    split: str = ""
    revision: str = ""
    documents: str = ""
    prompts: str = ""
    base_template: str = ""
    candidate_template: str = ""


def list_asked_tasks(
    base: Sequence[ScoreTable], candidate: Sequence[ScoreTable]
) -> tuple[AskedTask, ...]:
    """Return the tasks that both sides answered, in the candidate's order."""
    ours = {table.task: table for table in reversed(base)}
    theirs = {table.task: table for table in reversed(candidate)}
    tasks = dict.fromkeys(table.task for table in candidate if table.task in ours)
    return tuple(_asked_task(ours[task], theirs[task]) for task in tasks)


def _asked_task(base: ScoreTable, candidate: ScoreTable) -> AskedTask:
    run = {**base.run, **candidate.run}
    data = candidate.dataset or base.dataset
    version = _text(run.get("task_version"))
    return AskedTask(
        task=candidate.task,
        n=candidate.n,
        n_total=candidate.n_total or base.n_total,
        version=NO_VERSION if version == _UNVERSIONED else version,
        output_type=_text(run.get("output_type")),
        num_fewshot=_number(run.get("num_fewshot")),
        fewshot_seed=_number(run.get("fewshot_seed")),
        **{name: _text(data.get(name)) for name in ("dataset", "config", "split", "revision")},
        documents=_digest(candidate, candidate.doc_hashes),
        prompts=_digest(base, base.prompt_hashes),
        base_template=_template(base),
        candidate_template=_template(candidate),
    )


def _template(table: ScoreTable) -> str:
    """By which template prompts were made; a finished run records its text's digest alone."""
    reading = table.reading or {}
    template = _text(reading.get("chat_template"))
    return f"lm-eval#{template[:_DIGITS]}" if template and reading.get("finished") else template


def _text(value: Value) -> str:
    return "" if value is None else str(value)


def _number(value: Value) -> int | None:
    return int(value) if isinstance(value, (int, float)) else None


def _digest(table: ScoreTable, hashes: Sequence[str]) -> str:
    """Over the documents in their order; "" where the run does not show all hashes."""
    if len(hashes) != table.n or not all(hashes):
        return ""
    digest = hashlib.sha256()
    for line in _lines(table, hashes):
        digest.update(line)
    return digest.hexdigest()[:_DIGITS]


def _lines(table: ScoreTable, hashes: Sequence[str]) -> Iterator[bytes]:
    for doc_id, digest in zip(table.doc_ids.tolist(), hashes, strict=True):
        yield f"{doc_id} {digest}\n".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSize:
    """What the files hold that a model is loaded from; no second copy of it beside them.

    Attributes:
        bytes: of its tensors as they are stored, with scales and zero points; None where not known.
        weights: of the model that they stand for: packed ones are counted one by one, scales and
            zero points not at all; None where not known.
        kind: form of the files, such as "safetensors" or "gguf"; "" where that is not known.
        loaded_as: what loading makes of the weights, where that is not what is stored, such as
            "bitsandbytes nf4"; "" where they are loaded as they are.
        loaded_bytes: of its weights in memory, of a model that is quantised as it is loaded; None
            of others, and where nothing was loaded: all scores were known.
        reason: why a number is not known; "" where all are.
    """

    bytes: int | None = None
    weights: int | None = None
    kind: str = ""
    loaded_as: str = ""
    loaded_bytes: int | None = None
    reason: str = ""

    @property
    def shown_bytes(self) -> int | None:
        """What it takes quantised: in memory, where no file holds that; else what is stored."""
        return self.bytes if self.loaded_bytes is None else self.loaded_bytes

    @property
    def bits_per_weight(self) -> float | None:
        """Bits for each weight, of what is shown; None where either number is not known."""
        if self.shown_bytes is None or not self.weights:
            return None
        return 8 * self.shown_bytes / self.weights


# preparing  reading guard file and tasks, building requests, whatever is not one of the others
# loading    a model
# scoring    models answering, and their distributions being compared
# comparing  metrics and statistics
PhaseName = Literal["preparing", "loading", "scoring", "comparing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Time spent in one phase, that of phases inside of it left out.

    Attributes:
        phase: what was done; preparing is whatever is none of the others.
        wall_seconds: wall-clock time.
        models: names of those that it is about: both where they are asked side by side.
        cpu_seconds: of this process, all threads together.
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
        model: its name.
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
        phases: where the time went; a phase inside another one is left out there.
        answers: what each model answered.
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
        return sum(timing.wall_seconds for timing in self.phases if timing.phase == phase)

    @property
    def tokens(self) -> int | None:
        """Tokens fed to all models; None where one of them hides them."""
        counts = [answer.tokens for answer in self.answers if answer.tokens is not None]
        return sum(counts) if len(counts) == len(self.answers) else None

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens fed per wall-clock second of scoring; None where nothing was fed."""
        seconds = self.seconds("scoring")
        return self.tokens / seconds if self.tokens and seconds > 0.0 else None

    @property
    def kept_share(self) -> float:
        """Share of the answered documents that came from the score cache; 0 without any."""
        documents = sum(answer.documents for answer in self.answers)
        return sum(answer.kept for answer in self.answers) / documents if documents else 0.0


RunKind = Literal["model", "lm-eval run", "stored run", "dump"]
NotBisected = Literal["", "interrupted", "failed", "undeclared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingState:
    """One setting of a run as it was evaluated.

    Attributes:
        name: in the guard file.
        value: value in this run.
        reference: declared reference value.
        candidate: declared candidate value.
        target: where it is applied.
        effective: value read back from the loaded model.
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

    Attributes:
        kind: scored here, read from a finished lm-eval run, stored by evalguard, or outputs that
            were written to files.
        settings: of the guard file.
        digest: digest of everything that can change its scores.
        description: one line for people: "hf, 1.2M parameters, float32 on cpu", or the folder of an
            lm-eval run.
        model_type: lm-eval's name of how it was run, as "hf"; "" of finished runs.
        effective: setting name to the value read back from the model; {} for a base without
            settings.
        folder: of the model's files on this machine; "" where it has none, or was built.
        size: what is stored of the model; None of finished runs, and where nobody looked.
        model: id of the hub that the model has; "" where it has none, or is not known.
        revision: its commit there; "" where that is not known.
        computation: how it computed, read back from it: batch_size, token_budget, scorer, device
            ...; {} of finished runs.
    """

    name: str
    digest: str
    kind: RunKind = "model"
    description: str = ""
    model_type: str = ""
    effective: Mapping[str, Value] = field(default_factory=dict)
    settings: tuple[SettingState, ...] = ()
    folder: str = ""
    size: CheckpointSize | None = None
    model: str = ""
    revision: str = ""
    computation: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareReport:
    """The finished comparison of two runs; the one input of every report.

    Attributes:
        comparisons: one per (task, filter, metric), in the order they are shown.
        gate: the policy's answer over all of them.
        exit_code: what the command ends with (0, 1, 3, 4, or 125 under ``--git-bisect``).
        created: UTC time as ISO 8601 text.
        tasks: how each task was asked; () in results of earlier versions.
        command: the command line that made this report, "" for a call from Python.
        not_compared: metrics that were left out, each with the reason.
        findings: what every reader must see beside the verdict.
        broken_documents: on which the candidate, or both models, are broken, the worst kind first;
            at most the first hundred. The gate's limit of that name has their number.
        notes: what concerns the whole run, one line each.
        run_folder: where result.json and the samples lie; None where nothing was written.
        distributions: how the two models' distributions differ, one per task; () where that was
            not measured.
        kl_estimates: what servers' most probable tokens say about KL, one per task; () where not
            both sides show some.
        generations: how their generated answers differ, one per task that generates and whose
            answers both sides show.
        sequential: where a run that may stop early did; None in an ordinary run.
        bisect: which settings make the drift, a BisectReport (plain JSON as it was read where
            this evalguard has no bisect); None, with ``bisect_reason`` where one was to be
            expected, where there was no bisection.
        resources: what it took; None where nobody measured. No part of a report's equality.
        tracked: what became of the run at experiment trackers. No part of a report's equality.
        files: SHA-256, in hexadecimal digits, of each file of the run folder that holds documents,
            by its path in there; None where that is not known: nothing was written, or an earlier
            version did. No part of a report's equality.
        version: version of evalguard that made it.
        bisect_reason: why bisect is None where a bisection was to be expected; "" else.
        bisect_ended: "interrupted" or "failed": how a bisection ended that had found nothing out by
            then; "undeclared": none began, for the candidate declares no settings; else "".
    """

    version: str = ""
    created: str
    command: str = ""
    base: RunIdentity
    candidate: RunIdentity
    comparisons: tuple[Comparison, ...]
    gate: GateResult
    exit_code: int
    environment: Mapping[str, Value] = field(default_factory=dict)
    tasks: tuple[AskedTask, ...] = ()
    not_compared: tuple[NotCompared, ...] = ()
    findings: tuple[Finding, ...] = ()
    broken_documents: tuple[BrokenDocument, ...] = ()
    notes: tuple[str, ...] = ()
    run_folder: str | None = None
    distributions: tuple[DistributionComparison, ...] = ()
    kl_estimates: tuple[KlEstimate, ...] = ()
    generations: tuple[GenerationComparison, ...] = ()
    sequential: SequentialRun | None = None
    bisect: Any = None
    bisect_reason: str = ""
    bisect_ended: NotBisected = ""
    resources: Resources | None = field(default=None, compare=False)
    tracked: tuple[Sent, ...] = field(default=(), compare=False)
    files: Mapping[str, str] | None = field(default=None, compare=False)

    def with_unstored(self, text: str) -> CompareReport:
        """The report, with what could not be written or kept since it was made."""
        return replace(self, findings=(*self.findings, unstored(text)))


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
        rows = np.searchsorted(ids, self.tokens["doc_id"])
        counts = np.bincount(rows, minlength=ids.size)
        sums = np.bincount(rows, weights=self.tokens["kl"], minlength=ids.size)
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
        items = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        items = None
    if not (isinstance(items, dict) and all(isinstance(item, dict) for item in items.values())):
        raise StoreError(
            f"the samples of task '{task}' are damaged: scores that are none",
            hint="compare again, or remove the file of these samples to do without it",
        )
    return items
