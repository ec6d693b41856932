"""What each module of a quantised candidate would win back at the base's precision, and its cost.

A row is measured in the candidate: everything else stays quantised, and the drift with the row's
modules of the base in their place is taken from the candidate's, document by document.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from evalguard.bisect.bisect_report import ModulePrice, ModulePrices, WonBack, sort_prices
from evalguard.bisect.oracle.settings_oracle import (
    OpenOracle,
    OracleContext,
    OracleRequest,
    SearchedLimit,
    SettingsOracle,
)
from evalguard.bisect.scales import LimitScale
from evalguard.bisect.settings.hf_side import HFSide
from evalguard.bisect.settings.module_settings import ModuleLevel, hold_settings, take_modules_from
from evalguard.bisect.settings.quantised_modules import (
    QuantisedModule,
    QuantisedModules,
    find_quantised_modules,
)
from evalguard.bisect.subject import Subject
from evalguard.bisect.swap_effect import Gain, estimate_gain
from evalguard.comparison.finished_comparison import FinishedComparison
from evalguard.conversion.building import find_build
from evalguard.conversion.planning import plan_conversion, with_build
from evalguard.core.gate_state import Key
from evalguard.core.limits import Limit
from evalguard.core.multiple_tests import holm
from evalguard.core.question import Floats, Indices, Untestable
from evalguard.core.settings import Variant
from evalguard.engine.sources import ModelSource
from evalguard.errors import EvalguardError, EvaluationError, Interrupted, UsageError, error_text
from evalguard.store.cache_folder import open_cache_dir

_CONFIDENCE = 0.95
_KL = Limit(metric="kl_mean", value=1.0)  # a yardstick of one nat: figures are in nats


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedModules:
    """Rows of a table of prices.

    Attributes:
        quantised: what may be restored.
        rows: name -> modules that are restored together.
    """

    quantised: QuantisedModules
    rows: Mapping[str, tuple[QuantisedModule, ...]]

    @classmethod
    def of(cls, finished: FinishedComparison, over: ModuleLevel) -> PricedModules | None:
        """The rows of a comparison; None where its candidate is not quantised.

        Over layers they are each layer, each kind of module in all layers, and what stands beside
        them; over modules each module, too, and no layers.

        Raises:
            EvalguardError: files that cannot be read.
        """
        base, candidate = finished.sources[0], finished.candidate
        if candidate is None or not isinstance(base, ModelSource):
            return None
        sides = HFSide.of(base.variant), HFSide.of(_as_built(candidate.variant, finished))
        quantised = find_quantised_modules(*sides)
        if not quantised.modules:
            return None
        return cls(quantised=quantised, rows=dict(_rows(quantised, over)))


def _as_built(variant: Variant, finished: FinishedComparison) -> Variant:
    """A variant with what its recipe made by now in its place."""
    if variant.build is None:
        return variant
    plan, cache_dir = plan_conversion(variant), open_cache_dir(finished.options.cache_dir)
    made = find_build(variant, plan, cache_dir)
    if made is None:
        raise EvaluationError(f"what the recipe of '{variant.name}' built is not kept")
    return replace(variant, build=None, model_args=with_build(plan.model_args, str(made)))


def _rows(
    found: QuantisedModules, over: ModuleLevel
) -> Iterator[tuple[str, tuple[QuantisedModule, ...]]]:
    inside = [module for module in found.modules if module.layer is not None]
    if over == "layers" and found.layers > 1:
        for layer in dict.fromkeys(module.layer for module in inside):
            members = tuple(module for module in inside if module.layer == layer)
            yield f"{members[0].name.partition(f'.{layer}.')[0]}.{layer}", members
    for kind in dict.fromkeys(module.kind for module in inside):
        members = tuple(module for module in inside if module.kind == kind)
        if len(members) > 1:
            yield f"{kind} (all {len(members)})", members
        elif over == "layers":
            yield members[0].name, members
    alone = found.modules if over == "modules" else [m for m in found.modules if m.layer is None]
    for module in alone:
        yield ", ".join(module.modules), (module,)


def measure_prices(
    priced: PricedModules,
    finished: FinishedComparison,
    subject: Subject,
    *,
    announced: float,
    budget: float | None,
    say: Callable[[str], None],
    kept: Path | None,
    open_oracle: OpenOracle,
) -> ModulePrices:
    """Measure what the rows win back of the KL, and of a metric or limit of the same task.

    The documents, batches and the score cache are the comparison's; where all rows on all documents
    would take more than was announced for the search, blocks of documents are drawn, the same for
    all rows.

    Args:
        subject: what else is measured.
        announced: full evaluations that it is to take.
        budget: that it may take at most; None: no limit.
        kept: folder of what is finished where no cache is used.

    Raises:
        UsageError: the budget does not reach, or the modules cannot be taken.
        EvalguardError, KeyboardInterrupt: nothing could be measured.
    """
    measuring = _Measuring(
        priced=priced,
        finished=finished,
        share=min(announced, math.inf if budget is None else budget) / (len(priced.rows) + 1),
        budget=budget,
        say=say,
        kept=kept,
        open_oracle=open_oracle,
    )
    notes = [*priced.quantised.notes]
    of_kl = None if subject.key[2] == _KL.metric else measuring.kl_subject(subject.key[0])
    by_kl: _Measured | None = None
    if isinstance(of_kl, Subject):
        try:
            by_kl = measuring.measure(of_kl, announce=True)
        except Interrupted:
            raise
        except EvalguardError as error:
            notes.append(f"no KL was measured: {error_text(error)}")
    elif of_kl is not None:
        notes.append(f"no KL was measured: {of_kl}")
    by_subject = measuring.measure(subject, announce=by_kl is None)
    sides = (by_kl, by_subject) if of_kl is not None else (by_subject, None)
    return _table(measuring, subject, sides, notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """``gains`` by row, or why there is none; ``same``: rows that change nothing."""

    gains: Mapping[str, Gain | str]
    same: frozenset[str]
    drift: float
    documents: int
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measuring:
    priced: PricedModules
    finished: FinishedComparison
    share: float
    budget: float | None
    say: Callable[[str], None]
    kept: Path | None
    open_oracle: OpenOracle

    def kl_subject(self, task: str) -> Subject | str:
        """The mean KL of a task; or why it cannot be measured."""
        divergences = self.finished.scored[1].divergences.get(task)
        if divergences is None or not divergences.documents:
            reason = "" if divergences is None else divergences.reason
            return reason or "the comparison looked at no distributions"
        try:
            scale = LimitScale.of(_KL, task, divergences.documents)
        except UsageError as error:
            return str(error)
        base = np.zeros(len(scale.doc_ids))
        return Subject(key=scale.key, sigma=0.0, margin=1.0, scale=scale, base=base)

    def measure(self, subject: Subject, *, announce: bool = False) -> _Measured:
        """Score all rows.

        Raises:
            UsageError: the budget does not reach.
            EvalguardError: the candidate itself could not be scored.
        """
        with self._opened(subject) as oracle:
            documents = self._drawn(oracle)
            there = frozenset(oracle.settings)
            taken = {
                name: there & {module.name for module in members}
                for name, members in self.priced.rows.items()
            }
            asked = [name for name, members in taken.items() if members]
            if announce:
                cost = (len(asked) + 1) * documents.size / oracle.n_documents
                self.say(
                    f"what {len(asked)} groups of modules win back at the base's precision: "
                    f"{cost:.1f} full evaluations"
                )
            questions = [(there - taken[name], documents) for name in asked]
            own, *answers = oracle.measure_all([(there, documents), *questions])
            if isinstance(own, Untestable):
                raise own
            drift = float(np.mean(subject.base[documents] - own)) / oracle.scale.yardstick
            clusters = self._clusters(subject, documents)

            def gained(answer: Floats | Untestable) -> Gain | str:
                if isinstance(answer, Untestable):
                    return answer.reason
                return estimate_gain(
                    oracle.scale,
                    drift=drift,
                    own=own,
                    taken=answer,
                    clusters=clusters,
                    confidence=_CONFIDENCE,
                )

            gains = {name: gained(answer) for name, answer in zip(asked, answers, strict=True)}
            same = frozenset(taken.keys() - set(asked))
            return _Measured(
                gains={**gains, **{name: gained(own) for name in same}},
                same=same,
                drift=oracle.scale.sigma(drift),
                documents=int(documents.size),
                n=oracle.n_documents,
            )

    def _opened(self, subject: Subject) -> AbstractContextManager[SettingsOracle]:
        finished = self.finished
        base, candidate = finished.sources[0], finished.candidate
        assert isinstance(base, ModelSource)
        assert candidate is not None
        modules = {
            module.name: ",".join(module.modules) for module in self.priced.quantised.modules
        }
        held = hold_settings(candidate.variant)
        variant = take_modules_from(base.variant, held, modules)
        inquiry = OracleRequest(
            candidate=replace(candidate, variant=variant),
            scored=finished.scored,
            key=subject.key,
            held_to=None
            if subject.limit is None
            else SearchedLimit(scale=subject.limit, base=base),
        )
        surroundings = OracleContext(
            choices=finished.choices,
            options=finished.options,
            kept=self.kept,
            say=self.say,
            jobs=finished.choices.bisect.jobs,
            meter=finished.meter,
        )
        return self.open_oracle(inquiry, surroundings)

    def _drawn(self, oracle: SettingsOracle) -> Indices:
        """Whole blocks, at least one and as many as the share allows; rows of the documents."""
        if self.share >= 1.0:
            return np.arange(oracle.n_documents)
        blocks = [*oracle.blocks]
        rng = np.random.default_rng(self.finished.choices.task_options.seed)
        drawn = np.empty(0, dtype=np.intp)
        for index in rng.permutation(len(blocks)):
            if not drawn.size or drawn.size + len(blocks[index]) <= self.share * oracle.n_documents:
                drawn = np.concatenate([drawn, blocks[index]])
        cost = (len(self.priced.rows) + 1) * drawn.size / oracle.n_documents
        if self.budget is not None and cost > self.budget:
            raise UsageError(
                f"{len(self.priced.rows)} groups of modules take {cost:.1f} full evaluations at "
                f"least, and {self.budget:.1f} of the budget are left",
                hint="give more with --budget",
            )
        return np.sort(drawn)

    def _clusters(self, subject: Subject, documents: Indices) -> tuple[str, ...]:
        """Labels of documents that belong together; () where each stands alone."""
        scale = subject.limit
        key: Key = subject.key
        of_task = [table for table in self.finished.scored[0].tables if table.task == key[0]]
        labelled = next((table for table in of_task if table.clusters), None)
        if labelled is None:
            return ()
        labels = dict(zip(labelled.doc_ids.tolist(), labelled.clusters, strict=True))
        own = next((table for table in of_task if table.key == key), labelled)
        doc_ids = own.doc_ids.tolist() if scale is None else list(scale.doc_ids)
        return tuple(labels.get(doc_ids[row], f"document {doc_ids[row]}") for row in documents)


def _table(
    measuring: _Measuring,
    subject: Subject,
    measured: tuple[_Measured | None, _Measured | None],
    notes: Sequence[str],
) -> ModulePrices:
    """The table; ``measured``: by the KL, and by the subject."""
    by_kl, by_subject = measured
    priced = measuring.priced
    won = _won_back(by_kl), _won_back(by_subject)
    first = by_kl if by_kl is not None else by_subject
    assert first is not None
    rows = []
    for name, members in priced.rows.items():
        costs = [member.added_bytes for member in members]
        failure = first.gains[name]
        rows.append(
            ModulePrice(
                name=name,
                modules=tuple(module for member in members for module in member.modules),
                added_bytes=None if None in costs else sum(cost or 0 for cost in costs),
                kl=won[0].get(name),
                metric=won[1].get(name),
                same=name in first.same,
                option=priced.quantised.option(members),
                failure=failure if isinstance(failure, str) else "",
            )
        )
    task, filter_name, metric = subject.key
    return ModulePrices(
        rows=sort_prices(rows, measuring.finished.choices.gate.level),
        task=task,
        filter=filter_name,
        metric=metric,
        unit=subject.unit,
        kl=None if by_kl is None else by_kl.drift,
        drift=None if by_subject is None else by_subject.drift,
        documents=first.documents,
        n=first.n,
        confidence=_CONFIDENCE,
        level=measuring.finished.choices.gate.level,
        owner=priced.quantised.owner,
        evaluations=(len(rows) - len(first.same) + 1) * first.documents / first.n,
        notes=tuple(notes),
    )


def _won_back(found: _Measured | None) -> dict[str, WonBack]:
    """Rows that have a number, corrected for how many there are."""
    if found is None:
        return {}
    gains = {name: gain for name, gain in found.gains.items() if isinstance(gain, Gain)}
    singles = {name: 1.0 if gain.p_value is None else gain.p_value for name, gain in gains.items()}
    adjusted = dict(zip(singles, holm([*singles.values()]), strict=True))
    return {
        name: WonBack(
            amount=gain.amount,
            low=gain.low,
            high=gain.high,
            p_value=singles[name],
            adjusted_p=adjusted[name],
        )
        for name, gain in gains.items()
    }
