"""DistributionView: how far the candidate's next-token distributions are from the base's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evalguard.core.amounts import finite_or_none
from evalguard.core.compare_report import CompareReport
from evalguard.core.distribution_comparison import (
    DistributionComparison,
    Figure,
    Percentile,
    TokenPosition,
)
from evalguard.distributions.llama_cpp_block import llama_cpp_lines
from evalguard.page import rounding
from evalguard.page.safe_text import printable
from evalguard.page.table import Table
from evalguard.report.distribution_texts import (
    distribution_failure_text,
    kl_bounds_text,
    kl_text,
    percentile_text,
    share_text,
    unmoved_perplexity_text,
)

DISTRIBUTION_LEGEND = (
    "KL: divergence of the candidate from the base, nats a token; Δp: change in the scored "
    "token's probability; top-1: tokens where both have the same most probable one."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionView:
    """One row of the table of distributions; ``kl`` and its percentiles in nats a token.

    Attributes:
        known: whether there are numbers; ``sentences`` says why not, and what else is to be said.
        percentiles: (percent, KL as text, KL as a finite number or None), ascending.
        largest_at: where the largest KL is, "" where unknown.
        figures: further (name, text).
        llama_cpp: lines of the block that llama.cpp prints, where it is one of the runtimes.
    """

    task: str
    known: bool
    positions: str
    kl: str
    kl_p99: str
    kl_max: str
    dp_rms: str
    same_top1: str
    bit_identical: bool
    percentiles: tuple[tuple[float, str, float | None], ...]
    largest_at: str
    figures: tuple[tuple[str, str], ...]
    sentences: tuple[str, ...]
    remarks: tuple[str, ...]
    llama_cpp: tuple[str, ...] = ()


def distribution_view(report: CompareReport, one: DistributionComparison) -> DistributionView:
    """Return one task's distributions as texts."""
    sentences = (
        distribution_failure_text(one),
        kl_bounds_text(one),
        unmoved_perplexity_text(report, one),
    )
    return DistributionView(
        task=printable(one.task),
        known=not one.failure,
        positions=rounding.format_count(one.positions),
        kl="0 bit-identical" if one.bit_identical else kl_text(one.kl),
        kl_p99=percentile_text(one.kl_at(99.0)),
        kl_max=percentile_text(one.kl_at(100.0)),
        dp_rms=_figure_text(one.dp_rms),
        same_top1=share_text(one.same_top1),
        bit_identical=one.bit_identical,
        percentiles=tuple(map(_percentile_texts, one.kl_percentiles)),
        largest_at=_place_text(one.kl_max_at),
        figures=_figures(one),
        sentences=tuple(sentence for sentence in sentences if sentence),
        remarks=tuple(map(printable, one.caveats)),
        llama_cpp=() if one.llama_cpp is None else llama_cpp_lines(one.llama_cpp),
    )


def distribution_table(views: Sequence[DistributionView]) -> Table:
    """Return the table of all tasks that have numbers."""
    return Table(
        headings=["task", "positions", "KL mean", "99%", "max", "Δp rms", "top-1"],
        rows=[
            [
                view.task,
                view.positions,
                view.kl,
                view.kl_p99,
                view.kl_max,
                view.dp_rms,
                view.same_top1,
            ]
            for view in views
            if view.known
        ],
        right=range(1, 7),
        leaving=(1, 4, 5, 3, 6),  # least important first
        giving_way=0,
        least=14,
    )


def _figures(one: DistributionComparison) -> tuple[tuple[str, str], ...]:
    figures = (
        ("mean Δp", kl_text(one.dp)),
        (f"shared of the top {one.top_k}", share_text(one.same_topk)),
        ("perplexity, base", kl_text(one.base_perplexity)),
        ("perplexity, candidate", kl_text(one.candidate_perplexity)),
        ("perplexity ratio", kl_text(one.perplexity_ratio)),
        ("correlation", "-" if one.correlation is None else f"{one.correlation:.4g}"),
        ("Δp lowest at", _place_text(one.dp_min_at)),
    )
    return tuple((name, text) for name, text in figures if text not in ("", "-"))


def _figure_text(figure: Figure) -> str:
    return rounding.round_to_error(figure.value, figure.stderr)


def _percentile_texts(one: Percentile) -> tuple[float, str, float | None]:
    value = one.figure.value
    finite = finite_or_none(value)
    return one.percent, percentile_text(one.figure), finite


def _place_text(place: TokenPosition | None) -> str:
    if place is None:
        return ""
    return f"document {place.doc_id}, request {place.request}, position {place.position}"
