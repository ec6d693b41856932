"""Divergences of all tasks, as they are measured block by block."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from evalguard.config.guard import RunOptions
from evalguard.core.distribution_comparison import DistributionComparison
from evalguard.core.divergence import TOP_K, Divergence, DocumentDivergence
from evalguard.core.reports.findings import Finding
from evalguard.core.scorer import ComparedAnswer, Request
from evalguard.core.scores import ScoreTable
from evalguard.core.shown_tokens import KlEstimate, ShownTokens
from evalguard.errors import UsageError
from evalguard.run.options import CompareOptions, DistributionMode, MemoryUse
from evalguard.run.sources import Source, StoredSource
from evalguard.stats.distribution import compare_distributions
from evalguard.stats.kl_of_servers import estimate_kl

GENERATION_ONLY = "it generates text, and only scored tokens have distributions to be compared"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDivergences:
    """How two models' distributions differ on one task's documents.

    ``documents`` is empty where that was not measured; ``reason`` says why.
    """

    task: str
    documents: tuple[DocumentDivergence, ...] = ()
    reason: str = ""


@dataclass(slots=True)
class DivergenceTables:
    """What was measured so far, by task and document."""

    reasons: dict[str, str] = field(default_factory=dict)
    _found: dict[str, dict[int, dict[int, Divergence]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(dict))
    )

    def add(self, requests: Sequence[Request], compared: ComparedAnswer) -> None:
        """Take in one block; a task of which one block cannot be compared is not measured."""
        task = requests[0].task
        if compared.reason:
            self.give_up(task, compared.reason)
            return
        for request, divergence in zip(requests, compared.divergences, strict=True):
            found = _NO_POSITIONS if divergence is None else divergence
            self._found[task][request.doc_id][request.index] = found

    def give_up(self, task: str, reason: str) -> None:
        """Say why a task is not measured; the first reason counts."""
        self.reasons.setdefault(task, reason)

    def of(self, tasks: Sequence[str]) -> Mapping[str, TaskDivergences]:
        """Return what was measured; a task without any likelihood request generates."""
        return {task: self._of(task) for task in tasks}

    def _of(self, task: str) -> TaskDivergences:
        if task in self.reasons or task not in self._found:
            return TaskDivergences(task=task, reason=self.reasons.get(task, GENERATION_ONLY))
        documents = tuple(
            DocumentDivergence(doc_id=doc_id, requests=tuple(of for _, of in sorted(asked.items())))
            for doc_id, asked in sorted(self._found[task].items())
        )
        return TaskDivergences(task=task, documents=documents)


_NO_POSITIONS = Divergence(
    token_ids=np.empty(0, dtype=np.int64),
    base_logprobs=np.empty(0),
    candidate_logprobs=np.empty(0),
    kl=np.empty(0),
    base_top=np.empty(0, dtype=np.int64),
    candidate_top=np.empty(0, dtype=np.int64),
    shared_top=np.empty(0, dtype=np.int64),
    top_k=TOP_K,
)


# DistributionChoice: whether and how the two models' distributions are compared.


DEFAULT_TOP_K = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionChoice:
    """How distributions are compared.

    Attributes:
        mode: "lockstep": both models are loaded, and their distributions meet batch by batch.
            "reference": the base is scored first and leaves its ``top_k`` most probable tokens.
            "auto": lock-step where it is possible. "off": not at all.
        top_k: tokens of the base that a reference keeps at every position.
        file: of the reference: read if it is there, else written; None: no file.
        base_recurs: the base is compared with more candidates, so that "auto" keeps a reference of
            it in place of running it beside each of them.
    """

    mode: DistributionMode = "auto"
    top_k: int = DEFAULT_TOP_K
    file: Path | None = None
    base_recurs: bool = False


def choose_distributions(
    sources: Sequence[Source], run: RunOptions, options: CompareOptions
) -> DistributionChoice:
    """Settle how distributions are compared; the command line wins over the guard file.

    Raises:
        UsageError: for finished runs, which hold no distributions, if they are asked for.
    """
    mode = options.distributions or ("reference" if options.reference else run.distributions)
    mode = mode or "auto"
    if options.reference and mode != "reference":
        raise UsageError(
            f"a reference file has no use with distributions {mode}",
            hint="leave out one of --reference and --distributions",
        )
    top_k = options.reference_top_k or run.reference_top_k or DEFAULT_TOP_K
    if options.reference_top_k and options.reference and options.reference.exists():
        raise UsageError(
            f"{options.reference} is there and keeps its own number of tokens",
            hint="leave out reference_top_k, or remove the file: then it is made anew",
        )
    if options.reference_top_k and mode != "reference":
        raise UsageError(
            f"reference_top_k has no effect with distributions {mode}",
            hint="--distributions reference scores the base first and keeps a reference of it",
        )
    stored = [source for source in sources if isinstance(source, StoredSource)]
    if mode in ("lockstep", "reference") and stored:
        raise UsageError(
            f"'{stored[0].name}' is a finished run, which holds no distributions",
            hint="name the model instead of its run, or leave out --distributions",
        )
    return DistributionChoice(mode=mode, top_k=top_k, file=options.reference)


def choose_memory(
    run: RunOptions, options: CompareOptions, distributions: DistributionChoice
) -> MemoryUse:
    """Settle whether both models are loaded; the command line wins over the guard file.

    Raises:
        UsageError: for a way of comparing distributions that needs the opposite.
    """
    memory = options.memory or run.memory or "auto"
    opposite = {"lockstep": "reference", "sequential": "lockstep"}.get(memory)
    if distributions.mode == opposite:
        loads = "one model at a time" if opposite == "reference" else "both models"
        raise UsageError(
            f"memory {memory} does not go with distributions {opposite}, which needs {loads}",
            hint="leave out one of memory and distributions (run: {memory: ...}, --distributions)",
        )
    return memory


# From what was measured at every position to one comparison of distributions per task.


def compare_task_distributions(
    divergences: Iterable[TaskDivergences],
    tables: Sequence[ScoreTable],
    *,
    confidence: float,
) -> tuple[DistributionComparison, ...]:
    """Compare two models' distributions, task by task.

    A task that only generates has no scored token, and is left out. Any other one that was not
    measured is a failure with its reason, so that no limit of the gate passes over it.

    Args:
        tables: of one side, with the clusters of their documents.
    """
    return tuple(
        _compare_task(one, tables, confidence)
        for one in divergences
        if one.reason != GENERATION_ONLY
    )


def _compare_task(
    measured: TaskDivergences, tables: Sequence[ScoreTable], confidence: float
) -> DistributionComparison:
    if measured.reason:
        return DistributionComparison(
            task=measured.task,
            n=0,
            positions=0,
            top_k=0,
            confidence=confidence,
            failure=measured.reason,
        )
    doc_ids = [one.doc_id for one in measured.documents]
    clusters, field = cluster_labels(measured.task, doc_ids, tables)
    return compare_distributions(
        measured.task,
        measured.documents,
        confidence=confidence,
        clusters=clusters,
        cluster_field=field,
    )


def find_moved_distributions(
    distributions: Sequence[DistributionComparison],
) -> tuple[Finding, ...]:
    """Say, once, that distributions moved by more than rounding makes, by the worst task."""
    moved = [one for one in distributions if not one.failure and one.moved_far]
    if not moved:
        return ()
    most = min(moved, key=lambda one: (one.same_top1.value or 0.0, -(one.kl.value or 0.0)))
    kl, top1 = most.kl.value or 0.0, most.same_top1.value or 0.0
    others = len(moved) - 1
    more = f"; {others} more task{'' if others == 1 else 's'} too" if others else ""
    # without a full stop, and no number that JSON cannot hold
    text = (
        f"beneath the scores the distributions moved by more than rounding makes: KL {kl:.2g} nats "
        f"a token, another most likely token at {100 * (1 - top1):.2g}% of positions{more}"
    )
    finite = kl if math.isfinite(kl) else None
    return (
        Finding(
            kind="distributions_moved",
            text=text,
            task=most.task,
            values={"kl": finite, "same_top1": top1, "tasks": tuple(one.task for one in moved)},
        ),
    )


def estimate_task_kl(
    base: Mapping[str, ShownTokens],
    candidate: Mapping[str, ShownTokens],
    tables: Sequence[ScoreTable],
    *,
    confidence: float,
) -> tuple[KlEstimate, ...]:
    """Bound KL from below, task by task, from the tokens that both sides show.

    Where only one of them shows some, that is a failure.
    """
    return tuple(
        estimate_kl(
            task,
            base[task],
            candidate[task],
            confidence=confidence,
            clusters=cluster_labels(task, base[task], tables)[0],
        )
        if task in base and task in candidate
        else KlEstimate(
            task=task,
            n=0,
            positions=0,
            confidence=confidence,
            failure=_ONE_SIDE.format(side="base" if task in candidate else "candidate"),
        )
        for task in dict.fromkeys((*base, *candidate))
    )


_ONE_SIDE = (
    "the {side} shows no tokens beside the scored ones (a server: model_args.top_logprobs; a "
    "Hugging Face model of this process does beside such a server)"
)


def cluster_labels(
    task: str, doc_ids: Iterable[int], tables: Sequence[ScoreTable]
) -> tuple[Mapping[int, str] | None, str]:
    """Each document's label, and the field it comes from; None where each stands alone.

    A document that no metric has a value for belongs to no cluster but its own.
    """
    clustered = [table for table in tables if table.task == task and table.clusters]
    if not clustered:
        return None, ""
    labels = {
        doc_id: f"in {label}"
        for table in clustered
        for doc_id, label in zip(table.doc_ids.tolist(), table.clusters, strict=True)
    }
    alone = {doc_id: f"document {doc_id}" for doc_id in doc_ids}
    return {**alone, **labels}, clustered[0].cluster_field
