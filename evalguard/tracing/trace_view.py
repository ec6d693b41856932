"""TraceView: everything that a page about a trace lays out, as text that is safe to show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite

from evalguard.core.hyperparameters import HyperparameterDelta
from evalguard.core.trace_points import ROOT
from evalguard.core.trace_record import LayerDelta, SuspectModule, TokenDetail
from evalguard.page.rounding import format_count
from evalguard.page.safe_text import printable
from evalguard.report.hyperparameter_texts import configuration_text, difference_text, side_texts
from evalguard.report.side_view import SideView, flatten_entries, side_view
from evalguard.tracing.trace_report import TraceReport
from evalguard.tracing.trace_words import (
    CHECKS,
    TraceState,
    cancels_text,
    find_explanations,
    format_error,
    format_ratio,
    lead_text,
    next_step,
    nonfinite_text,
    numbers_text,
    padded_text,
    touches_suspect,
    trace_state,
    undeclared_text,
    weights_text,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthPoint:
    """A layer, or what stands before or behind the layers: largest ratios there, None: none."""

    label: str
    local: float | None
    accumulated: float | None
    first: bool
    layer: int | None = None


def depth_points(report: TraceReport) -> Iterator[DepthPoint]:
    """Yield the points in the order of the pass."""
    first = report.trace.first
    groups: dict[str, list[LayerDelta]] = {}
    for delta in sorted(report.trace.layers, key=lambda layer: layer.order):
        if delta.layer is None and delta.kind != "leaf" and not is_beyond(report, delta):
            continue  # the whole model, which holds all, and what leaves nothing behind
        label = f"layer {delta.layer}" if delta.layer is not None else _end_of_name(delta.point)
        groups.setdefault(label, []).append(delta)
    for label, layers in groups.items():
        accumulated = [
            layer.accumulated_ratio for layer in layers if _known(layer.accumulated_ratio)
        ]
        local = [
            layer.local_ratio
            for layer in layers
            if _known(layer.local_ratio) and not layer.cancels_at
        ]
        layer = layers[0].layer
        if (layer is not None and (accumulated or local)) or any((*accumulated, *local)):
            yield DepthPoint(
                label=printable(label),
                local=max((ratio for ratio in local if ratio is not None), default=None),
                accumulated=accumulated[-1] if accumulated else None,
                first=first is not None and any(first.point == layer.point for layer in layers),
                layer=layer,
            )


def is_beyond(report: TraceReport, one: LayerDelta) -> bool:
    """Whether the local error of a point is above the floor, and not one that cancels."""
    twin = report.trace.twin
    if one.cancels_at:
        return False
    return _known(one.local_ratio) and twin is not None and (one.local_ratio or 0) > twin.threshold


def _known(ratio: float | None) -> bool:
    return ratio is not None and ratio == ratio


def _end_of_name(point: str) -> str:
    """What a point outside of the layers belongs to: "lm_head"; "encoder.layers.0", of a module in
    another list of layers; "output" of the whole model."""
    module = point.rpartition(":")[0].partition("#")[0]
    names = module.split(".")
    inside = next((at for at, name in enumerate(names[:-1]) if name.isdigit()), 0)
    if inside:
        return ".".join(names[max(inside - 2, 0) : inside + 1])
    *_, above, end = ("", *names)
    if end.isdigit():  # a module of a list beside the layers
        return f"{above} {end}"
    return "output" if module == ROOT else end


_MOST_TOKENS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DetailView:
    """A point in detail: its heads, and the worst token positions."""

    point: str
    heads: tuple[tuple[str, str], ...]
    tokens: tuple[tuple[str, str, str, str], ...]


def detail_view(report: TraceReport, one: TokenDetail) -> DetailView:
    """Return the errors of one point as texts, the worst tokens first."""
    cells = [
        (error, document, position)
        for document, errors in enumerate(one.tokens)
        for position, error in enumerate(errors)
        if error == error
    ]
    worst = sorted(cells, reverse=True)[:_MOST_TOKENS]
    return DetailView(
        point=printable(one.point),
        heads=tuple((str(head), format_error(error)) for head, error in enumerate(one.heads)),
        tokens=tuple(
            (
                printable(_document_name(report, document)),
                str(position),
                printable(_token_text(report, document, position)),
                format_error(error),
            )
            for error, document, position in worst
        ),
    )


def _document_name(report: TraceReport, number: int) -> str:
    return report.documents[number].name if number < len(report.documents) else f"#{number}"


def _token_text(report: TraceReport, document: int, position: int) -> str:
    texts = report.documents[document].token_texts if document < len(report.documents) else ()
    return texts[position] if position < len(texts) else ""


_MOST_CAUSES = 3
_LEGEND = (
    "Local: error that this module introduces, the base's own values at its input, in multiples of "
    "the largest that rounding alone makes there (the floor)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectView:
    """A module beyond the floor; ``local`` and ``accumulated`` as multiples of it.

    ``cancels``: where its error is undone, in words; "" for a suspect.
    """

    module: str
    operation: str
    difference: str
    layer: str
    check: str
    local: str
    accumulated: str
    swap: str
    is_first: bool
    why: str
    cancels: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerView:
    """A measured point as a row; figures as texts, and as numbers to sort by."""

    point: str
    place: str
    order: int
    local: str
    local_ratio: str
    accumulated: str
    accumulated_ratio: str
    floor: str
    cosine: str
    max_abs: str
    sum_base: str
    sum_candidate: str
    mean_base: str
    mean_candidate: str
    keys: tuple[float, ...]
    beyond: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperparameterView:
    """A hyper-parameter of both sides as texts; "-" where a side does not show it."""

    name: str
    base: str
    candidate: str
    verdict: str
    where: str
    sources: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceView:
    """A trace as texts; "" or () where there is nothing to say.

    Attributes:
        headline: "LOCATED: model.layers.1.self_attn, before o_proj, ...".
        lead: the same without the state. because: what may explain it: how the weights were
            rounded, hyper-parameters.
        nonfinite: where nan or infinite values arise. weights: their class, and why it is a floor.
        padded: what padding changes, beside a suspect that is the lead; "" else.
        numbers: the first suspect's in words. configuration: how hyper-parameters compare.
        other_layouts: modules whose errors cancel, which are no suspects.
        growth: ratios over depth. threshold: a ratio above it is beyond the floor.
    """

    title: str
    state: TraceState
    headline: str
    lead: str
    because: tuple[str, ...]
    nonfinite: str
    weights: str
    padded: str
    numbers: str
    configuration: str
    next_step: str
    next_command: str
    base: SideView
    candidate: SideView
    documents: str
    chosen: str
    swap_task: str
    suspects: tuple[SuspectView, ...]
    other_layouts: tuple[SuspectView, ...]
    legend: str
    layers: tuple[LayerView, ...]
    growth: tuple[DepthPoint, ...]
    threshold: float | None
    hyperparameters: tuple[HyperparameterView, ...]
    equal: int
    details: tuple[DetailView, ...]
    twin: tuple[tuple[str, str], ...]
    unaligned: tuple[tuple[str, str, str], ...]
    never_run: tuple[str, ...]
    caveats: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    command: str
    created: str
    version: str
    folder: str
    exit_code: int


def build_trace_view(report: TraceReport) -> TraceView:
    """Return everything that a page about ``report`` lays out."""
    trace = report.trace
    step, command = next_step(report)
    explained = find_explanations(report)
    state = trace_state(report)
    lead = lead_text(report)
    return TraceView(
        title=printable(f"{report.candidate.name} against {report.base.name}: trace"),
        state=state,
        headline=f"{state.upper()}: {lead}",
        lead=lead,
        because=tuple(filter(None, (undeclared_text(report), *map(difference_text, explained))))[
            :_MOST_CAUSES
        ],
        nonfinite=nonfinite_text(report),
        weights=weights_text(report),
        padded=_padded_beside(report),
        numbers=numbers_text(report),
        configuration=configuration_text(
            report.hyperparameters,
            longest=max((document.tokens for document in report.documents), default=0),
        ),
        next_step=step,
        next_command=command,
        base=side_view(report.base),
        candidate=side_view(report.candidate),
        documents=_documents_text(report),
        chosen=printable(report.chosen),
        swap_task=printable(report.swap_task),
        suspects=tuple(_suspect_view(report, suspect) for suspect in trace.suspects),
        other_layouts=tuple(_suspect_view(report, suspect) for suspect in trace.other_layouts),
        legend=_LEGEND if trace.suspects or trace.other_layouts else "",
        layers=tuple(_layer_view(report, layer) for layer in trace.layers),
        growth=tuple(depth_points(report)),
        threshold=None if trace.twin is None else trace.twin.threshold,
        hyperparameters=tuple(map(_hyperparameter_view, report.hyperparameters)),
        equal=sum(delta.verdict == "equal" for delta in report.hyperparameters),
        details=tuple(detail_view(report, detail) for detail in trace.details),
        twin=tuple(_twin_facts(report)),
        unaligned=tuple(
            (printable(entry.side), printable(entry.name), printable(entry.reason))
            for entry in trace.unaligned
        ),
        never_run=tuple(map(printable, trace.never_run)),
        caveats=tuple(dict.fromkeys(map(printable, (*trace.caveats, *report.notes)))),
        environment=flatten_entries(report.environment),
        command=printable(report.command),
        created=printable(report.created),
        version=printable(report.version),
        folder="" if report.folder is None else printable(report.folder),
        exit_code=report.exit_code,
    )


def _padded_beside(report: TraceReport) -> str:
    if report.padded is None or not report.trace.suspects:
        return ""
    description = padded_text(report.padded)
    return f"{description[0].upper()}{description[1:]}."


def _documents_text(report: TraceReport) -> str:
    number = len(report.documents)
    plural = "" if number == 1 else "s"
    tokens = report.trace.tokens
    positions = f"{format_count(tokens)} position{'' if tokens == 1 else 's'}"
    return f"{format_count(number)} document{plural}, {positions}"


def _suspect_view(report: TraceReport, one: SuspectModule) -> SuspectView:
    trace = report.trace
    causes = [hyper for hyper in report.hyperparameters if touches_suspect(hyper, one)]
    return SuspectView(
        module=printable(one.module),
        operation=printable(one.operation),
        difference=printable(one.difference or one.operation),
        layer="" if one.layer is None else str(one.layer),
        check=CHECKS[one.check],
        local=format_ratio(one.local_ratio),
        accumulated=format_ratio(one.accumulated_ratio),
        swap="" if one.swap_sigma is None else f"{one.swap_sigma:+.2g}",
        is_first=trace.first is not None and trace.first.module == one.module,
        why=", ".join(dict.fromkeys(printable(hyper.name) for hyper in causes)),
        cancels=cancels_text(one) if one.cancels_at else "",
    )


def _layer_view(report: TraceReport, one: LayerDelta) -> LayerView:
    local, far = one.local, one.accumulated
    shown = local or far
    ratio = one.local_ratio
    sums = ("-",) * 4
    if shown is not None:
        sums = tuple(  # type: ignore[assignment]
            f"{value:.8g}"
            for value in (
                shown.sum_base, shown.sum_candidate, shown.mean_base, shown.mean_candidate,
            )
        )  # fmt: skip
    return LayerView(
        point=printable(one.point),
        place=printable(one.place),
        order=one.order,
        local=format_error(None if local is None else local.relative_l2),
        local_ratio=format_ratio(ratio),
        accumulated=format_error(None if far is None else far.relative_l2),
        accumulated_ratio=format_ratio(one.accumulated_ratio),
        floor=format_error(one.floor),
        cosine="-" if shown is None or shown.cosine != shown.cosine else f"{shown.cosine:.7g}",
        max_abs=format_error(None if shown is None else shown.max_abs),
        sum_base=sums[0],
        sum_candidate=sums[1],
        mean_base=sums[2],
        mean_candidate=sums[3],
        keys=(
            float(one.order), _key(None if local is None else local.relative_l2), _key(ratio),
            _key(None if far is None else far.relative_l2), _key(one.accumulated_ratio),
            _key(one.floor), _key(None if shown is None else shown.cosine),
            _key(None if shown is None else shown.max_abs),
        ),
        beyond=is_beyond(report, one),
    )  # fmt: skip


def _key(value: float | None) -> float:
    """A number that every browser can sort by; what is unknown comes last."""
    if value is None or value != value:
        return -1.0
    return value if isfinite(value) else 1e300


def _hyperparameter_view(one: HyperparameterDelta) -> HyperparameterView:
    base, candidate = side_texts(one)
    sources = dict.fromkeys(filter(None, (one.base_source, one.candidate_source)))
    return HyperparameterView(
        name=printable(one.name),
        base=base,
        candidate=candidate,
        verdict=one.verdict,
        where=printable(one.where),
        sources=printable(", ".join(sources)),
    )


def _twin_facts(report: TraceReport) -> Iterator[tuple[str, str]]:
    twin = report.trace.twin
    if twin is None:
        return
    yield "Candidate computes in", printable(twin.dtype)
    votes = ", ".join(f"{number} {kind}" for kind, number in twin.votes.items())
    yield "Its weights", printable(twin.weights) + (f" ({printable(votes)})" if votes else "")
    yield "Benign twins", printable(", ".join(twin.twins)) or "none"
    upcast = "made" if twin.upcast else f"not made: {printable(twin.not_upcast)}"
    yield "Check in float32", upcast
    yield "Beyond the floor", f"above {twin.threshold:g} times"
    if twin.attention is not None:
        yield "Attention", printable(f"{twin.attention[0]} and {twin.attention[1]}")
