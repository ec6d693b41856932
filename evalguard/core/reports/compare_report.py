"""CompareReport: everything a finished comparison has to say, as plain data for the reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from evalguard.core.comparison import Comparison
from evalguard.core.distribution_comparison import DistributionComparison
from evalguard.core.documents.broken_documents import BrokenDocument
from evalguard.core.reports.asked_task import AskedTask
from evalguard.core.reports.bisect_report import BisectReport
from evalguard.core.reports.checkpoint_size import CheckpointSize
from evalguard.core.reports.findings import Finding, unstored
from evalguard.core.reports.generations import GenerationComparison
from evalguard.core.reports.resources import Resources
from evalguard.core.reports.tracked_run import Sent
from evalguard.core.scores import NotCompared
from evalguard.core.settings import Value
from evalguard.core.shown_tokens import KlEstimate
from evalguard.core.stopping import SequentialRun

if TYPE_CHECKING:
    from evalguard.core.gate import GateResult


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
        bisect: which settings make the drift; None, with ``bisect_reason`` where one was to be
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
    bisect: BisectReport | None = None
    bisect_reason: str = ""
    bisect_ended: NotBisected = ""
    resources: Resources | None = field(default=None, compare=False)
    tracked: tuple[Sent, ...] = field(default=(), compare=False)
    files: Mapping[str, str] | None = field(default=None, compare=False)

    def with_unstored(self, text: str) -> CompareReport:
        """The report, with what could not be written or kept since it was made."""
        return replace(self, findings=(*self.findings, unstored(text)))
