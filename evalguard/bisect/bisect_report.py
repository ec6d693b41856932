"""BisectReport: what a bisection came to: its searches, culprits and repair, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from evalguard.bisect.search.components import Kind
from evalguard.bisect.search.search_result import Part, Probe, Status, Suspect
from evalguard.core.comparison import Outcome
from evalguard.core.gate_state import GateState, Key
from evalguard.core.limits import LimitVerdict
from evalguard.core.question import Loads, Refusal
from evalguard.core.settings import Value
from evalguard.core.verdict import SIGMA
from evalguard.report.record_documents import damaged_error, read_entries, read_key, read_list


@dataclass(frozen=True, slots=True, kw_only=True)
class WonBack:
    """How much of a drift is gone with modules of the base in the candidate's place.

    Attributes:
        amount: paired, document by document; below 0 where there is more drift than before.
        low, high: its interval, two-sided, for this row alone.
        p_value: one-sided, that nothing is won back.
        adjusted_p: the same, with Holm's correction over all rows.
    """

    amount: float
    low: float
    high: float
    p_value: float
    adjusted_p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModulePrice:
    """Modules that are restored together, all others quantised: one row.

    Attributes:
        name: what they are called: "model.layers.2", "mlp.down_proj (all 5)", "lm_head".
        modules: their names, in the model's order.
        added_bytes: by how much the file would grow; None where that is not known.
        kl: of the mean KL, in nats; None where it was not measured.
        metric: of the searched metric or limit, in the unit of ``ModulePrices``; None likewise.
        same: the base's modules are the candidate's own, to the bit: nothing was put in place.
        option: the quantiser's own option that keeps them; "" where none is known.
        failure: why they could not be measured.
    """

    name: str
    modules: tuple[str, ...]
    added_bytes: int | None = None
    kl: WonBack | None = None
    metric: WonBack | None = None
    same: bool = False
    option: str = ""
    failure: str = ""

    @property
    def won(self) -> WonBack | None:
        """What the table is sorted by: KL, else the metric."""
        return self.kl if self.kl is not None else self.metric

    @property
    def per_megabyte(self) -> float | None:
        """What is won back for each 1,000,000 bytes; None where either is not known."""
        if self.won is None or not self.added_bytes:
            return None
        return self.won.amount / self.added_bytes * 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class ModulePrices:
    """The table of prices, the best buy first.

    Attributes:
        task, filter, metric: of which ``unit`` is the unit; the KL is on the same documents.
        unit: of the drifts: "sigma", or that of a limit's own figure.
        kl: mean KL of the candidate on them, in nats; None where it was not measured.
        drift: of the candidate in ``unit``; None likewise.
        documents: how many of ``n`` were scored under each row.
        confidence: of the intervals; ``level``: one-sided, at which a row is told from none.
        owner: whose option each row has: "llama.cpp", "compressed-tensors"; "" where unknown.
        evaluations: what it took, in full evaluations.
        notes: what is not known, and why, one line each.
    """

    rows: tuple[ModulePrice, ...]
    task: str
    filter: str
    metric: str
    unit: str
    kl: float | None = None
    drift: float | None = None
    documents: int
    n: int
    confidence: float = 0.95
    level: float = 0.025
    owner: str = ""
    evaluations: float = field(default=0.0, compare=False)
    notes: tuple[str, ...] = ()

    @property
    def proven(self) -> tuple[ModulePrice, ...]:
        """The rows that win something back, with Holm's correction over all; the best first."""
        return tuple(
            row for row in self.rows if row.won is not None and row.won.adjusted_p <= self.level
        )


def sort_prices(rows: Sequence[ModulePrice], level: float) -> tuple[ModulePrice, ...]:
    """Sort rows by what a megabyte buys; where the cost of one is unknown, by what is won.

    Rows that are told from none come first: what is measured of a small module is all noise, and a
    megabyte of it would be the best buy. Rows without a number come last, in the order given.

    Args:
        level: one-sided, with Holm's correction.
    """
    measured = [row for row in rows if row.won is not None]
    priced = all(row.per_megabyte is not None for row in measured)

    def worth(row: ModulePrice) -> tuple[bool, float]:
        assert row.won is not None
        worth = row.per_megabyte if priced and row.per_megabyte is not None else row.won.amount
        return row.won.adjusted_p <= level, worth

    return (
        *sorted(measured, key=worth, reverse=True),
        *(row for row in rows if row.won is None),
    )


WHOLE_MODEL = "model_args.pretrained"  # the target of a setting for a whole checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class GuiltySetting:
    """A setting that is shown, on all documents, to make drift; all drifts in ``unit``.

    Attributes:
        setting: its name; ``target`` is where it is applied.
        reference, candidate: its value in the base, and in the candidate that was searched.
        sigma_alone: drift with it alone at its candidate value; None if that was not measured: it
            cannot be built, or the proof did without.
        alone_error_sigma: standard error of that, as an estimate for all documents; None likewise.
        alone_share: share of the documents that it was measured on; 0.0 if it was not.
        sigma_in_context: what it adds where all other culprits are at their candidate value.
        shapley_sigma: its share: what it adds on average over all orders of the culprits.
        error_sigma: standard error of its effect (jitter).
        role: additive; together: acts with its partners only, so that ``sigma_in_context`` is what
            they do together; redundant: its partner does the same.
        partners: the settings that it acts with only, or that do the same; none of an additive one.
        task, filter, metric: on which it was found guilty.
        unit: "sigma"; of a limit of the gate the unit of its own figure.
        target: where the setting is applied.
    """

    setting: str
    reference: Value
    candidate: Value
    target: str
    sigma_alone: float | None
    alone_error_sigma: float | None
    alone_share: float
    sigma_in_context: float
    shapley_sigma: float
    error_sigma: float
    role: Kind
    task: str
    filter: str
    metric: str
    unit: str = SIGMA
    partners: tuple[str, ...] = ()


Ended = Literal["", "interrupted", "budget", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSearch:
    """The search for who makes one metric drift; all drifts in ``unit``, positive is worse.

    Attributes:
        unit: "sigma"; of a limit of the gate (``metric`` is its name) the unit of its own figure:
            how far documents diverge from the base, which is at 0.
        task, filter, metric: of n documents; ``margin`` is the drift that was tolerated.
        settings: those that were searched; they differ between base and candidate.
        repaired_before: settings that earlier searches found guilty, at reference in this one.
        inside: guilty settings whose finer parts were searched, all other settings at reference.
        coarse: whether only the largest causes were searched, by a margin above the gate's.
        log_unit: of a metric that grows exponentially with the drift of its documents' mean, the
            base's relative standard error: sigma times it is how much more the metric is, as a
            share of the base's; 0 of any other metric.
        drift_sigma: of the candidate from the assignment with all settings at reference; None if
            it was not measured. ``outside_sigma``: of that assignment from the base, which no
            setting explains; 0 where the two are one.
        unexplained_sigma: what is left of the drift with all culprits at reference; None likewise.
        suspects: not proven, the likeliest first. ``parts``: of diffuse drift.
        cleared: settings that are neither culprits nor suspects nor inert.
        inert: settings that changed no score of the documents that they were asked about.
        evaluations: cost in full evaluations of the metric's documents; ``probes``: measurements,
            trials of alternatives included; ``measured``: those of the search itself, in order.
        loads: how its models came about; None where that is not known.
        written: texts that its probes generated; ``one_at_a_time`` what each setting by itself on
            all documents would have, about: as the base where it is innocent, as the candidate
            where it is guilty. None of what generates nothing.
        ended: why a search that is "stopped" ended, ``failure`` with which error.
        status: minimal: the culprits are proven, without them the gate passes, and none can be left
            out; masked: likewise, and some hide what others do; diffuse: spread over many settings;
            not_reproduced: inside the margin; stopped: interrupted or out of budget; unexplained:
            what is proven does not bring the drift inside the margin.
        culprits: with their figures, also those that their own parts stand for in the report's
            culprits.
        untestable: assignments that could not be built or run.
        margin: drift that was tolerated, in unit.
        failure: the error with which it ended.
    """

    task: str
    filter: str
    metric: str
    status: Status
    n: int
    margin: float
    settings: tuple[str, ...]
    repaired_before: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    coarse: bool = False
    log_unit: float = 0.0
    unit: str = SIGMA
    drift_sigma: float | None
    outside_sigma: float = 0.0
    unexplained_sigma: float | None
    culprits: tuple[GuiltySetting, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    parts: tuple[Part, ...] = ()
    cleared: tuple[str, ...] = ()
    inert: tuple[str, ...] = ()
    untestable: tuple[UntestableAssignment, ...] = ()
    evaluations: float
    probes: int
    measured: tuple[Probe, ...] = ()
    loads: Loads | None = field(default=None, compare=False)
    written: WrittenTexts | None = field(default=None, compare=False)
    one_at_a_time: WrittenTexts | None = None
    seed: int
    ended: Ended = ""
    failure: str = ""

    @property
    def key(self) -> Key:
        """(task, filter, metric)."""
        return self.task, self.filter, self.metric

    @property
    def culprit_names(self) -> tuple[str, ...]:
        """Names of the guilty settings."""
        return tuple(culprit.setting for culprit in self.culprits)

    @property
    def eliminated(self) -> bool:
        """Whether without the culprits every document scored as the base's, bit by bit."""
        guilty = {*self.culprit_names}
        innocent = {name for name in self.settings if name not in guilty}
        return bool(guilty) and any(
            {*probe.settings} == innocent
            and probe.documents_so_far == self.n
            and probe.drift_sigma == probe.error_sigma == 0.0
            for probe in self.measured
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenTexts:
    """How much was generated.

    Attributes:
        tokens: None where a model does not show them.
        characters: of all texts.
    """

    tokens: int | None
    characters: int

    def __add__(self, other: WrittenTexts) -> WrittenTexts:
        """Of both together."""
        known = self.tokens is not None and other.tokens is not None
        return WrittenTexts(
            tokens=(self.tokens or 0) + (other.tokens or 0) if known else None,
            characters=self.characters + other.characters,
        )

    def times(self, number: int) -> WrittenTexts:
        """So many times as much."""
        tokens = None if self.tokens is None else number * self.tokens
        return WrittenTexts(tokens=tokens, characters=number * self.characters)


@dataclass(frozen=True, slots=True, kw_only=True)
class UntestableAssignment:
    """Settings that, together at their candidate value and all others at reference, cannot run.

    Attributes:
        outcome: why, in one of a few words.
        reason: why, in words.
    """

    settings: tuple[str, ...]
    outcome: Refusal
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairedMetric:
    """One metric of the repaired candidate, judged as the candidate's was.

    Attributes:
        sigma: drift from the base; None where there is none.
        gated: whether the gate judges it.
    """

    task: str
    filter: str
    metric: str
    sigma: float | None
    outcome: Outcome
    gated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """The candidate with the culprits at reference, compared on all tasks by the same gate.

    Attributes:
        assignment: value of every setting.
        reset: settings that were put back to reference: the culprits, and what cannot be built
            without them.
        metrics, limits: what the gate judged it by.
        passed, state: the gate's answer; None where ``failure`` says why it was not asked.
        failure: why it could not be judged; "" where it was.
    """

    assignment: Mapping[str, Value]
    reset: tuple[str, ...]
    passed: bool | None
    state: GateState | None
    metrics: tuple[RepairedMetric, ...] = ()
    limits: tuple[LimitVerdict, ...] = ()
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommended:
    """The assignment nearest to the candidate that passes the gate, measured on all documents.

    ``values`` of the culprits; every other setting keeps its candidate value. ``drift_sigma`` is in
    ``unit``.

    Attributes:
        values: setting to value.
        drift_sigma: measured on all documents.
        unit: of ``drift_sigma``: "sigma", or that of a limit's own figure.
    """

    values: Mapping[str, Value]
    drift_sigma: float
    unit: str = SIGMA


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedPlace:
    """Where a trace of the two models finds the error first.

    Attributes:
        folder: of the trace's run, beside this one.
        module: of the candidate.
        operation: what it does otherwise, in the trace's words.
    """

    folder: str
    module: str
    operation: str


# Of several searches the first of these that one of them has is the status of all.
_GRAVEST: tuple[Status, ...] = (
    "stopped",
    "unexplained",
    "diffuse",
    "not_reproduced",
    "masked",
    "minimal",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectReport:
    """A finished bisection; plain data for the reports.

    Attributes:
        searches: one a metric, in the order in which they were made; each was made with the
            culprits of those before at reference.
        repaired: None where there are no culprits.
        recommended: values beyond the two of each setting; None where none were declared, or
            none is better than reference.
        derived: whether the settings are differences of the two models that nobody declared.
        fix: lines of a guard file that put the culprits right, and ``fix_where`` they belong.
        proof: the command that shows that; ``resume`` the one that goes on with a stopped search.
        seconds: of the bisection alone; ``expected`` evaluations for 1, 2 and 3 culprits.
        announced_evaluations: for all of it, searches inside culprits included, before it began;
            None of reports that did not say.
        notes: what else is to be said, one line each.
        prices: of a quantised candidate whose layers or modules were searched, what each would win
            back at the base's precision.
        traced: of a candidate that only the base in its place repairs: where its error begins.
        method: of the search, in words; ``versions`` of what it ran with.
        budget: evaluations that might be spent; None: no limit.
        thorough: ``--thorough``.
        jobs: probes at the same time.
        fix_where: where they belong.
        resume: command that goes on with a stopped search; "" else.
        expected: expected for 1, 2 and 3 culprits, before it started.
        versions: of what it ran with.
    """

    searches: tuple[MetricSearch, ...]
    repaired: Repaired | None = None
    recommended: Recommended | None = None
    derived: bool = False
    fix: str = ""
    fix_where: str = ""
    proof: str = ""
    resume: str = ""
    seconds: float | None = field(default=None, compare=False)
    expected: tuple[float, ...] = ()
    announced_evaluations: float | None = None
    budget: float | None = None
    thorough: bool = False
    jobs: int = 1
    notes: tuple[str, ...] = ()
    prices: ModulePrices | None = None
    traced: TracedPlace | None = None
    method: str = "Bayesian selection over settings, verified on all documents"
    versions: Mapping[str, Value] = field(default_factory=dict)

    @property
    def status(self) -> Status:
        """Of all searches, the gravest where they differ.

        One for the largest causes counts if no finer one of its metric follows, one inside a guilty
        setting does not.
        """
        statuses = {search.status for search in self.searches if not self._superseded(search)}
        return next(status for status in _GRAVEST if status in statuses)

    def _superseded(self, search: MetricSearch) -> bool:
        later = self.searches[self.searches.index(search) + 1 :]
        again = any(follow_up.key == search.key and not follow_up.inside for follow_up in later)
        return bool(search.inside) or (search.coarse and again)

    @property
    def answers(self) -> tuple[MetricSearch, ...]:
        """The searches that have something to say: not those that a finer one had to repeat."""
        return tuple(
            search
            for search in self.searches
            if search.culprits or search.inside or not self._superseded(search)
        )

    @property
    def culprits(self) -> tuple[GuiltySetting, ...]:
        """Of all searches, in their order; guilty parts stand for what they are parts of."""
        settled = [search for search in self.searches if search.status in ("minimal", "masked")]
        parted = {name for search in settled for name in search.inside}
        return tuple(
            culprit
            for search in self.searches
            for culprit in search.culprits
            if culprit.setting not in parted and (not search.inside or search in settled)
        )

    @property
    def unit(self) -> str:
        """Of the first search's drifts."""
        return self.searches[0].unit

    @property
    def drift_sigma(self) -> float | None:
        """Drift that the settings of the first search make, in ``unit``."""
        return self.searches[0].drift_sigma

    @property
    def outside_sigma(self) -> float:
        """Drift outside the settings: from the base to all settings at reference, in ``unit``."""
        return self.searches[0].outside_sigma

    @property
    def unexplained_sigma(self) -> float | None:
        """Drift of the first metric that its culprits leave at reference, in ``unit``."""
        first = self.searches[0]
        own = [search for search in self.searches if search.key == first.key and not search.inside]
        return own[-1].unexplained_sigma

    @property
    def evaluations(self) -> float:
        """Cost of all searches, in full evaluations."""
        return sum(search.evaluations for search in self.searches)

    @property
    def probes(self) -> int:
        """Measurements of all searches."""
        return sum(search.probes for search in self.searches)


def bisect_fields(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored bisection's fields; searches of before name the guilty settings alone.

    Raises:
        StoreError: something is not as evalguard writes it.
    """
    culprits = read_list(value.get("culprits", []), "bisect.culprits")
    searches = enumerate(read_list(value.get("searches"), "bisect.searches"))
    completed = [
        _with_guilty(search, f"bisect.searches[{number}]", culprits) for number, search in searches
    ]
    if all(search.get("inside") is True for search in completed):
        raise damaged_error("bisect.searches", "has none of whole settings")
    return {**value, "searches": completed}


def _with_guilty(value: Any, where: str, culprits: Sequence[Any]) -> dict[str, Any]:
    """The figures of the guilty settings of a search stand above it where they are not in it."""
    fields = read_entries(value, where)
    if fields.get("guilty") is not None:
        return fields
    own = {
        culprit["setting"]: {
            "alone_share": 0.0 if culprit.get("sigma_alone") is None else 1.0,
            **culprit,
        }
        for culprit in culprits
        if isinstance(culprit, Mapping)
        and read_key(culprit, "bisect.culprits") == read_key(fields, where)
    }
    named = read_list(fields.get("culprits", []), f"{where}.culprits")
    absent = [name for name in named if name not in own]
    if absent:
        raise damaged_error(
            f"{where}.culprits", f"names {absent[0]!r}, of which no figures are there"
        )
    return {**fields, "guilty": [own[name] for name in named]}
