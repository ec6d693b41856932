"""TraceView: everything that a page about a trace lays out, as text that is safe to show."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, isinf
from typing import Literal

from evalguard.core.reports.trace import (
    HyperparameterDelta,
    LayerDelta,
    SuspectModule,
    TokenDetail,
    TraceReport,
)
from evalguard.core.settings import Value
from evalguard.core.text import traced_as_comparison
from evalguard.core.tracing.hyperparameters import EVERY_MODULE
from evalguard.core.tracing.points import ROOT
from evalguard.report.view.side import SideView, flatten_entries, side_view
from evalguard.report.words.bisection import list_names
from evalguard.report.words.plain_text import printable
from evalguard.report.words.rounding import format_count

TraceState = Literal["located", "clear", "unknown"]

_CHECKS = {
    "as it runs": "as both run",
    "what it computes": "with both computed in float32",
    "weights": "in its weights",
}
_MOST_TOLD, _MOST_NAMED = 2, 8
# How modules are called that hold a hyper-parameter, by the first word of its name.
_HELD_BY = {"norm": ("norm", "ln"), "attention": ("attn", "attention"), "activation": ("act",)}
_LEGEND = (
    "Local: error that this module introduces, the base's own values at its input, in multiples of "
    "the largest that rounding alone makes there (the floor)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectView:
    """A module beyond the floor; ``local`` and ``accumulated`` as multiples of it."""

    module: str
    operation: str
    layer: str
    check: str
    local: str
    accumulated: str
    swap: str
    is_first: bool
    why: str


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
class DepthPoint:
    """A layer, or what stands before or behind the layers: largest ratios there, None: none."""

    label: str
    local: float | None
    accumulated: float | None
    first: bool


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
class DetailView:
    """A point in detail: its heads, and the worst token positions."""

    point: str
    heads: tuple[tuple[str, str], ...]
    tokens: tuple[tuple[str, str, str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceView:
    """A trace as texts; "" or () where there is nothing to say.

    Attributes:
        headline: "LOCATED: model.layers.1.self_attn, before o_proj, ...".
        lead: the same without the state. because: hyper-parameters that may explain it.
        numbers: the first suspect's in words. configuration: how hyper-parameters compare.
        growth: ratios over depth. threshold: a ratio above it is beyond the floor.
    """

    title: str
    state: TraceState
    headline: str
    lead: str
    because: tuple[str, ...]
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
    step, command = _next_step(report)
    explained = _explaining(report)
    state = trace_state(report)
    lead = _lead(report)
    return TraceView(
        title=printable(f"{report.candidate.name} against {report.base.name}: trace"),
        state=state,
        headline=f"{state.upper()}: {lead}",
        lead=lead,
        because=tuple(map(_difference_text, explained)),
        numbers=_numbers(report),
        configuration=configuration_text(report.hyperparameters),
        next_step=step,
        next_command=command,
        base=side_view(report.base),
        candidate=side_view(report.candidate),
        documents=_documents_text(report),
        chosen=printable(report.chosen),
        swap_task=printable(report.swap_task),
        suspects=tuple(_suspect_view(report, one) for one in trace.suspects),
        legend=_LEGEND if trace.suspects else "",
        layers=tuple(_layer_view(report, one) for one in trace.layers),
        growth=tuple(_growth(report)),
        threshold=None if trace.twin is None else trace.twin.threshold,
        hyperparameters=tuple(map(_hyperparameter_view, report.hyperparameters)),
        equal=sum(one.verdict == "equal" for one in report.hyperparameters),
        details=tuple(_detail_view(report, one) for one in trace.details),
        twin=tuple(_twin_facts(report)),
        unaligned=tuple(
            (printable(one.side), printable(one.name), printable(one.reason))
            for one in trace.unaligned
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


def trace_state(report: TraceReport) -> TraceState:
    """Whether a location is named, nothing is beyond the floor, or nothing is known."""
    if report.trace.suspects:
        return "located"
    return "clear" if report.exit_code == 0 else "unknown"


def format_ratio(ratio: float | None) -> str:
    """Return a multiple of the floor: "1.3x", "340x", "1e+06x"; "-" where there is none."""
    if ratio is None or ratio != ratio:
        return "-"
    if isinf(ratio):
        return "infx"
    return f"{ratio:.0f}x" if 99.5 <= ratio < 1e5 else f"{ratio:.2g}x"


def _format_error(value: float | None) -> str:
    return "-" if value is None or value != value else f"{value:.2g}"


def _lead(report: TraceReport) -> str:
    trace = report.trace
    first = trace.first
    if first is not None:
        where = printable(first.module)
        beyond = "is the first module beyond the floor"
        if not trace.localised:
            beyond = "is the first module at which the error grows beyond the floor"
        return (
            f"{where} {beyond}: {printable(first.operation)}; {format_ratio(first.local_ratio)} "
            f"what rounding makes there {_CHECKS[first.check]}"
        )
    if report.exit_code == 0:
        worst = max(
            (one for one in trace.layers if one.local_ratio is not None),
            key=lambda one: one.local_ratio or 0.0,
            default=None,
        )
        largest = ""
        if worst is not None:
            ratio = format_ratio(worst.local_ratio)
            largest = f"; the largest local error is {ratio} the floor, at {printable(worst.point)}"
        return f"no module introduces more error than rounding does{largest}"
    why = next(iter((*report.notes, *trace.caveats)), "nothing could be measured")
    return f"where the error comes from is not known: {printable(why)}"


def _numbers(report: TraceReport) -> str:
    """The first suspect's errors, as porters report them."""
    first = report.trace.first
    point = None if first is None else _find_layer(report, first.point)
    error = None if point is None else point.local
    if first is None or point is None or error is None:
        return ""
    text = (
        f"At {printable(first.point)}: relative L2 {_format_error(error.relative_l2)}, cosine "
        f"{error.cosine:.6f}, largest difference {_format_error(error.max_abs)}; sums "
        f"{error.sum_candidate:.8g} for {error.sum_base:.8g}"
    )
    others = len(report.trace.suspects) - 1
    if others > 0:
        text += f". {others} more module{'s' if others > 1 else ''} beyond the floor"
    largest = report.trace.suspects[0]
    if largest.module != first.module:
        text += f", the largest {printable(largest.module)} ({format_ratio(largest.local_ratio)})"
    return f"{text}."


def _find_layer(report: TraceReport, point: str) -> LayerDelta | None:
    return next((one for one in report.trace.layers if one.point == point), None)


def _documents_text(report: TraceReport) -> str:
    number = len(report.documents)
    plural = "" if number == 1 else "s"
    unit = "token" if any(one.token_texts or one.task for one in report.documents) else "position"
    tokens = report.trace.tokens
    return (
        f"{format_count(number)} document{plural}, {format_count(tokens)} "
        f"{unit}{'' if tokens == 1 else 's'}"
    )


def _suspect_view(report: TraceReport, one: SuspectModule) -> SuspectView:
    trace = report.trace
    causes = [hyper for hyper in report.hyperparameters if _touches(hyper, one)]
    return SuspectView(
        module=printable(one.module),
        operation=printable(one.operation),
        layer="" if one.layer is None else str(one.layer),
        check=_CHECKS[one.check],
        local=format_ratio(one.local_ratio),
        accumulated=format_ratio(one.accumulated_ratio),
        swap="" if one.swap_sigma is None else f"{one.swap_sigma:+.2g}",
        is_first=trace.first is not None and trace.first.module == one.module,
        why=", ".join(dict.fromkeys(printable(hyper.name) for hyper in causes)),
    )


def _layer_view(report: TraceReport, one: LayerDelta) -> LayerView:
    local, far = one.local, one.accumulated
    shown = local or far
    threshold = None if report.trace.twin is None else report.trace.twin.threshold
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
        local=_format_error(None if local is None else local.relative_l2),
        local_ratio=format_ratio(ratio),
        accumulated=_format_error(None if far is None else far.relative_l2),
        accumulated_ratio=format_ratio(one.accumulated_ratio),
        floor=_format_error(one.floor),
        cosine="-" if shown is None or shown.cosine != shown.cosine else f"{shown.cosine:.7g}",
        max_abs=_format_error(None if shown is None else shown.max_abs),
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
        beyond=ratio is not None and threshold is not None and ratio > threshold,
    )  # fmt: skip


def _key(value: float | None) -> float:
    """A number that every browser can sort by; what is unknown comes last."""
    if value is None or value != value:
        return -1.0
    return value if isfinite(value) else 1e300


# Growth over depth: one point a layer, and one for each module outside of the layers.


def _growth(report: TraceReport) -> Iterator[DepthPoint]:
    first = report.trace.first
    groups: dict[str, list[LayerDelta]] = {}
    for one in sorted(report.trace.layers, key=lambda layer: layer.order):
        if one.layer is None and one.kind == "container":
            continue  # the whole model, which holds all of them
        label = f"layer {one.layer}" if one.layer is not None else _end_of_name(one.point)
        groups.setdefault(label, []).append(one)
    for label, layers in groups.items():
        accumulated = [one.accumulated_ratio for one in layers if _known(one.accumulated_ratio)]
        local = [one.local_ratio for one in layers if _known(one.local_ratio)]
        inside = label.startswith("layer ")
        if (inside and (accumulated or local)) or any((*accumulated, *local)):
            yield DepthPoint(
                label=printable(label),
                local=max((one for one in local if one is not None), default=None),
                accumulated=accumulated[-1] if accumulated else None,
                first=first is not None and any(first.point == one.point for one in layers),
            )


def _known(ratio: float | None) -> bool:
    return ratio is not None and ratio == ratio


def _end_of_name(point: str) -> str:
    """What a point outside of the layers belongs to: "lm_head"; "output" of the whole model."""
    module = point.rpartition(":")[0].partition("#")[0]
    end = module.rpartition(".")[2]
    if end.isdigit():  # what a layer is given
        return f"layer {end}"
    return "output" if module == ROOT else end


# Hyper-parameters in words.


def hyperparameter_text(value: Value) -> str:
    """Return a value with as many digits as tell it from its float32 neighbours."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, list):
        return f"[{', '.join(map(hyperparameter_text, value))}]"
    return printable(value if isinstance(value, str) else json.dumps(value))


def configuration_text(found: Sequence[HyperparameterDelta]) -> str:
    """Say how the hyper-parameters of both sides compare, those that differ by name."""
    if not found:
        return ""
    counts = {
        verdict: [one for one in found if one.verdict == verdict]
        for verdict in ("differs", "one side only", "equal as float32", "equal")
    }
    differing = counts["differs"]
    shown = "; ".join(map(_difference_text, differing))
    if len(differing) > _MOST_TOLD:
        names = list(dict.fromkeys(one.name for one in differing))
        shown = f"{len(names)} differ: {list_names(names, most=_MOST_NAMED)}"
    head = f"Configuration: {shown}" if differing else "Configuration: nothing differs"
    rounded = list_names([one.name for one in counts["equal as float32"]], most=3)
    tail = [f"equal once in float32: {rounded}"] if rounded else []
    alone = len(counts["one side only"])
    if alone:
        tail.append(f"{alone} shown by one side only")
    tail.append(f"{len(counts['equal'])} equal")
    return f"{head} ({', '.join(tail)})"


def _difference_text(one: HyperparameterDelta) -> str:
    where = f" ({printable(one.where)})" if one.where else ""
    base, candidate = _side_texts(one)
    return f"{printable(one.name)} {base} in the base, {candidate} in the candidate{where}"


def _side_texts(one: HyperparameterDelta) -> tuple[str, str]:
    """Both values; "-" for a side that does not show it."""
    alone = one.verdict == "one side only"
    return (
        "-" if alone and not one.base_source else hyperparameter_text(one.base),
        "-" if alone and not one.candidate_source else hyperparameter_text(one.candidate),
    )


def _hyperparameter_view(one: HyperparameterDelta) -> HyperparameterView:
    base, candidate = _side_texts(one)
    sources = dict.fromkeys(filter(None, (one.base_source, one.candidate_source)))
    return HyperparameterView(
        name=printable(one.name),
        base=base,
        candidate=candidate,
        verdict=one.verdict,
        where=printable(one.where),
        sources=printable(", ".join(sources)),
    )


def _explaining(report: TraceReport) -> list[HyperparameterDelta]:
    """Hyper-parameters that differ at the first suspect, or in the model as a whole."""
    first = report.trace.first
    if first is None:
        return []
    return [one for one in report.hyperparameters if _touches(one, first)]


def _touches(one: HyperparameterDelta, suspect: SuspectModule) -> bool:
    """Whether a difference is held by a suspect, or by the module that the suspect is a part of.

    What only the config holds is read by the outermost module.
    """
    if one.verdict != "differs":
        return False
    if not one.where:
        return suspect.module == ROOT and suspect.fault == "operation"
    module = suspect.module.split(".")
    if one.where == EVERY_MODULE:
        words = _HELD_BY.get(one.name.partition("_")[0], ())
        return one.name == "dtype" or any(word in module[-1].lower() for word in words)
    globs = one.where.partition(" and ")[0].split(", ")
    return any(
        len(module) - len(parts) in (0, 1)
        and all(a in ("*", b) for a, b in zip(parts, module, strict=False))
        for parts in (glob.split(".") for glob in globs)
    )


# Floors, details, and what to do next.


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


_MOST_TOKENS = 10


def _detail_view(report: TraceReport, one: TokenDetail) -> DetailView:
    cells = [
        (error, document, position)
        for document, errors in enumerate(one.tokens)
        for position, error in enumerate(errors)
        if error == error
    ]
    worst = sorted(cells, reverse=True)[:_MOST_TOKENS]
    return DetailView(
        point=printable(one.point),
        heads=tuple((str(head), _format_error(error)) for head, error in enumerate(one.heads)),
        tokens=tuple(
            (
                printable(_document_name(report, document)),
                str(position),
                printable(_token_text(report, document, position)),
                _format_error(error),
            )
            for error, document, position in worst
        ),
    )


def _document_name(report: TraceReport, number: int) -> str:
    return report.documents[number].name if number < len(report.documents) else f"#{number}"


def _token_text(report: TraceReport, document: int, position: int) -> str:
    texts = report.documents[document].token_texts if document < len(report.documents) else ()
    return texts[position] if position < len(texts) else ""


def _next_step(report: TraceReport) -> tuple[str, str]:
    """What to do next in words without a full stop, and a command for it."""
    first = report.trace.first
    if first is None:
        if report.exit_code:
            return "name documents or inputs that both models can read", ""
        return "ask a task whether the models differ where it counts", _comparison(report)
    explained = _explaining(report)
    if explained:
        names = list_names(list(dict.fromkeys(one.name for one in explained)), most=2)
        return f"give the candidate the base's {names} there, and trace again", ""
    where = printable(first.module)
    if first.fault == "weights":
        return f"look at the weights of {where} (evalguard tensors), and trace again", ""
    if first.fault == "precision":
        return f"compute {where} as the base does, and trace again", ""
    return f"compare the code of {where} with the base's, and trace again", ""


def _comparison(report: TraceReport) -> str:
    """The comparison of the two models, as they were typed."""
    typed = printable(traced_as_comparison(report.command))
    sides = (shlex.quote(side.name) for side in (report.base, report.candidate))
    return typed or printable("evalguard compare --base {} --cand {}".format(*sides))
