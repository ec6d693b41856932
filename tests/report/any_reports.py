"""Hypothesis strategies: reports with any values and any names."""

from __future__ import annotations

import dataclasses
from typing import Any

from distribution_examples import distribution
from example_reports import comparison, report
from hypothesis import strategies as st

from evalguard.core.compare_report import CompareReport, RunIdentity, SettingState
from evalguard.core.comparison import Comparison
from evalguard.core.distribution_comparison import (
    DistributionComparison,
    Figure,
    LlamaCppFigures,
    Percentile,
)
from evalguard.core.gate import AcceptedDrift, GateResult, Waiver
from evalguard.core.generation_comparison import (
    DriftPart,
    FilterComparison,
    GenerationComparison,
    PairedFigure,
    RepeatedScore,
)
from evalguard.core.limits import KINDS, LimitVerdict
from evalguard.core.scores import NotCompared


def setting(name: str) -> SettingState:
    return SettingState(name=name, value=1, reference=2, candidate=1, target="config.x")


numbers = st.one_of(st.none(), st.floats())
names = st.text(st.characters(exclude_categories=()), max_size=60)
counts, shares = st.integers(0, 10**9), st.floats(0, 1)
outcomes = st.sampled_from(
    ["regressed", "degraded", "improved", "unchanged", "undecided", "failed"]
)


@st.composite
def comparisons(draw: st.DrawFn) -> Comparison:
    fields: dict[str, Any] = {
        name: draw(numbers)
        for name in (
            "base", "base_stderr", "candidate", "candidate_stderr", "sigma", "paired_stderr",
            "p_value", "false_alarm_probability",
        )
    }  # fmt: skip
    return comparison(
        **fields,
        task=draw(names),
        metric=draw(names),
        filter=draw(names),
        n=draw(st.integers(0, 10**12)),
        n_used=draw(st.integers(0, 10**12)),
        sigma_interval=draw(st.one_of(st.none(), st.tuples(st.floats(), st.floats()))),
        outcome=draw(outcomes),
        significant=draw(st.booleans()),
        certain=draw(st.booleans()),
        bit_identical=draw(st.booleans()),
        reason=draw(names),
        flips=draw(st.one_of(st.none(), st.tuples(counts, counts))),
        churn=draw(st.one_of(st.none(), counts)),
        same_answer=draw(st.one_of(st.none(), shares)),
        same_answer_interval=draw(st.one_of(st.none(), st.tuples(shares, shares))),
        needed_n=draw(st.one_of(st.none(), st.integers(0, 10**15))),
        caveats=tuple(draw(st.lists(names, max_size=3))),
    )


intervals = st.one_of(st.none(), st.tuples(st.floats(), st.floats()))
figures = st.builds(Figure, value=numbers, stderr=numbers, interval=intervals, bounds=intervals)
percentiles = st.builds(Percentile, percent=st.sampled_from([50.0, 99.0, 100.0]), figure=figures)


llama_cpp_figures = st.builds(
    LlamaCppFigures,
    positions=counts,
    correlation=numbers,
    kl_percentiles=st.tuples(percentiles),
    dp_percentiles=st.tuples(percentiles, percentiles),
    **dict.fromkeys(
        ("perplexity", "base_perplexity", "log_ratio", "ratio", "difference", "kl", "dp"), figures
    ),
    dp_rms=figures,
    same_top=figures,
)


@st.composite
def distributions(draw: st.DrawFn) -> DistributionComparison:
    names_of_figures = ("kl", "dp", "dp_rms", "same_top1", "same_topk", "perplexity_ratio")
    return distribution(
        **{name: draw(figures) for name in names_of_figures},
        task=draw(names),
        positions=draw(st.integers(0, 10**12)),
        kl_percentiles=tuple(draw(st.lists(percentiles, max_size=3))),
        exact=draw(st.booleans()),
        llama_cpp=draw(st.one_of(st.none(), llama_cpp_figures)),
        bit_identical=draw(st.booleans()),
        correlation=draw(numbers),
        failure=draw(st.sampled_from(["", "NaN"])),
    )


paired = st.builds(
    PairedFigure,
    base=figures,
    candidate=figures,
    difference=figures,
    n=counts,
    method=names,
)
filters = st.builds(
    FilterComparison, filter=names, missing=paired, candidate_only=counts, base_only=counts
)
repeated = st.builds(
    RepeatedScore,
    filter=names,
    metric=names,
    kind=st.sampled_from(["mean", "pass"]),
    k=st.integers(2, 10**6),
    score=paired,
)
parts = st.builds(
    DriftPart,
    filter=names,
    metric=names,
    cause=st.sampled_from(["missing", "cut"]),
    side=st.sampled_from(["base", "candidate"]),
    documents=counts,
    part=st.floats(),
    drift=st.floats(),
)
generations = st.builds(
    GenerationComparison,
    task=names,
    n=counts,
    repeats=counts,
    confidence=st.just(0.95),
    length=paired,
    cut=st.one_of(st.none(), paired),
    same_text=figures,
    base_equal=st.one_of(st.none(), shares),
    candidate_equal=st.one_of(st.none(), shares),
    filters=st.lists(filters, max_size=2).map(tuple),
    repeated=st.lists(repeated, max_size=2).map(tuple),
    parts=st.lists(parts, max_size=2).map(tuple),
    caveats=st.lists(names, max_size=1).map(tuple),
)


limit_verdicts = st.builds(
    LimitVerdict,
    metric=st.sampled_from(sorted(KINDS)),
    kind=st.sampled_from(["upper", "lower"]),
    limit=st.floats(0, 1),
    task=names,
    filter=names,
    of=names,
    value=numbers,
    interval=intervals,
    bounds=intervals,
    state=st.sampled_from(["passed", "regressed", "undecided", "failed"]),
    certain=st.booleans(),
    reason=names,
)


accepted = st.builds(
    AcceptedDrift,
    key=st.tuples(names, names, names),
    waiver=st.builds(
        Waiver,
        task=names,
        metric=names,
        filter=names,
        up_to=st.floats(0.01, 1e9),
        until=st.just("2026-12-31"),
        reason=names,
        where=names,
    ),
)


@st.composite
def reports(draw: st.DrawFn) -> CompareReport:
    several = tuple(draw(st.lists(comparisons(), max_size=4)))
    keys = [(c.task, c.filter, c.metric) for c in several]
    some = st.lists(st.sampled_from(keys), max_size=3).map(tuple) if keys else st.just(())
    gate = GateResult(
        passed=draw(st.booleans()),
        state=draw(st.sampled_from(["passed", "regressed", "undecided", "failed"])),
        margin=draw(st.floats(0, 1e6)),
        fail_on="margin",
        confidence=0.95,
        gated=tuple(keys),
        regressed=draw(some),
        undecided=draw(some),
        failed=draw(some),
        holm_p_values=(None,) * len(keys),
        family_false_alarm=draw(numbers),
        family_false_alarm_independent=draw(numbers),
        family_false_alarm_estimate=draw(numbers),
        reason="",
        limits=tuple(draw(st.lists(limit_verdicts, max_size=2))),
        accepted=tuple(draw(st.lists(accepted, max_size=2))),
    )
    empty = report()
    return dataclasses.replace(
        empty,
        base=dataclasses.replace(empty.base, name=draw(names), description=draw(names)),
        candidate=RunIdentity(
            name=draw(names), digest=draw(names), settings=(setting(draw(names)),)
        ),
        comparisons=several,
        distributions=tuple(draw(st.lists(distributions(), max_size=2))),
        generations=tuple(draw(st.lists(generations, max_size=2))),
        gate=gate,
        notes=tuple(draw(st.lists(names, max_size=2))),
        not_compared=(
            NotCompared(task=draw(names), filter="f", metric=draw(names), reason=draw(names)),
        ),
        command=draw(st.sampled_from(["", "evalguard compare "])) + draw(names),
        run_folder=draw(st.one_of(st.none(), names)),
    )
