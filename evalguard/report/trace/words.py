"""A trace in words: its answer, hyper-parameters that may explain it, and what to do next."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from math import isinf
from typing import Literal, get_args

from evalguard.core.reports.trace import (
    Check,
    HyperparameterDelta,
    HyperparameterVerdict,
    LayerDelta,
    PaddedTwin,
    SuspectModule,
    TraceReport,
)
from evalguard.core.settings import Value
from evalguard.core.text import traced_as_comparison
from evalguard.core.tracing.hyperparameters import EVERY_MODULE
from evalguard.core.tracing.points import ROOT
from evalguard.report.words.bisection import list_names
from evalguard.report.words.plain_text import printable

TraceState = Literal["located", "clear", "unknown"]

CHECKS: dict[Check, str] = {
    "as it runs": "as both run",
    "what it computes": "with both computed in float32",
    "weights": "in its weights",
}
_MOST_TOLD, _MOST_NAMED = 2, 8
# How modules are called that hold a hyper-parameter, by the first word of its name.
_HELD_BY = {
    "norm": ("norm", "ln"),
    "attention": ("attn", "attention"),
    "activation": ("act", "mlp", "intermediate"),
    "rope": ("rotary", "rope", "attn", "attention"),
    "embedding": ("embed", "wte"),
    "final": (ROOT, "lm_head"),
    "logit": (ROOT, "lm_head"),
}
# What explains no error by itself: which code computes, not what.
_NO_CAUSE = frozenset({"attention_implementation"})


def trace_state(report: TraceReport) -> TraceState:
    """Whether a location is named, nothing is beyond the floor, or nothing is known."""
    if report.trace.suspects or report.padded is not None:
        return "located"
    return "clear" if report.exit_code == 0 else "unknown"


def module_text(module: str) -> str:
    """A module in a sentence."""
    return "the outermost module" if module == ROOT else printable(module)


def format_ratio(ratio: float | None) -> str:
    """Return a multiple of the floor: "1.3x", "340x", "1e+06x"; "-" where there is none."""
    if ratio is None or ratio != ratio:
        return "-"
    if isinf(ratio):
        return "infx"
    return f"{ratio:.0f}x" if 99.5 <= ratio < 1e5 else f"{ratio:.2g}x"


def format_error(value: float | None) -> str:
    """Return an error with two digits; "-" where there is none."""
    return "-" if value is None or value != value else f"{value:.2g}"


def lead_text(report: TraceReport) -> str:
    """Say where the error comes from, that there is none, or why that is not known."""
    trace = report.trace
    first = trace.first
    if first is not None:
        where = module_text(first.module)
        beyond = "is the first module beyond the floor"
        if not trace.localised:
            beyond = "is the first module at which the error grows beyond the floor"
        return (
            f"{where} {beyond}: {printable(first.operation)}; {format_ratio(first.local_ratio)} "
            f"what rounding makes there {CHECKS[first.check]}"
        )
    if report.padded is not None:
        alone = "" if not measured_modules(report) else "; no module adds error to a text alone"
        return f"{padded_text(report.padded)}{alone}"
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


def measured_modules(report: TraceReport) -> bool:
    """Whether any module's error was measured."""
    return any(one.local or one.accumulated for one in report.trace.layers)


def padded_text(padded: PaddedTwin) -> str:
    """Say what padding changes in the candidate alone, and where it enters."""
    beside = "" if padded.base_nats is None else ", and not the base's"
    text = (
        f"padding changes the candidate's answers by up to {padded.nats:.2g} nats a token{beside}"
    )
    if not padded.module:
        return text
    return f"{text}; it enters at {module_text(padded.module)}"


def numbers_text(report: TraceReport) -> str:
    """The first suspect's errors, as porters report them."""
    first = report.trace.first
    point = None if first is None else _find_layer(report, first.point)
    error = None if point is None else point.local
    if first is None or point is None or error is None:
        return ""
    text = (
        f"At {printable(first.point)}: relative L2 {format_error(error.relative_l2)}, cosine "
        f"{error.cosine:.6f}, largest difference {format_error(error.max_abs)}; sums "
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
        for verdict in get_args(HyperparameterVerdict)
    }
    differing = counts["differs"]
    shown = "; ".join(map(difference_text, differing))
    if len(differing) > _MOST_TOLD:
        names = list(dict.fromkeys(one.name for one in differing))
        shown = f"{len(names)} differ: {list_names(names, most=_MOST_NAMED)}"
    head = f"Configuration: {shown}" if differing else "Configuration: nothing differs"
    tail = []
    for dtype in ("float32", "float16", "bfloat16"):
        rounded = list_names([one.name for one in counts[f"equal as {dtype}"]], most=3)
        if rounded:
            tail.append(f"equal once in {dtype}: {rounded}")
    alone = len(counts["one side only"])
    if alone:
        tail.append(f"{alone} shown by one side only")
    tail.append(f"{len(counts['equal'])} equal")
    return f"{head} ({', '.join(tail)})"


def difference_text(one: HyperparameterDelta) -> str:
    """Return "norm_eps 1e-06 in the base, 1e-05 in the candidate (model.norm)"."""
    where = f" ({printable(one.where)})" if one.where else ""
    base, candidate = side_texts(one)
    return f"{printable(one.name)} {base} in the base, {candidate} in the candidate{where}"


def side_texts(one: HyperparameterDelta) -> tuple[str, str]:
    """Both values; "-" for a side that does not show it."""
    alone = one.verdict == "one side only"
    return (
        "-" if alone and not one.base_source else hyperparameter_text(one.base),
        "-" if alone and not one.candidate_source else hyperparameter_text(one.candidate),
    )


def find_explanations(report: TraceReport) -> list[HyperparameterDelta]:
    """Hyper-parameters that differ at the first suspect, or in the model as a whole."""
    first = report.trace.first
    if first is None:
        return []
    return [one for one in report.hyperparameters if touches_suspect(one, first)]


def touches_suspect(one: HyperparameterDelta, suspect: SuspectModule) -> bool:
    """Whether a difference is held by a suspect, or by the module that the suspect is a part of.

    Where it is not known which modules hold it, by the words in their names.
    """
    if one.verdict != "differs" or one.name in _NO_CAUSE:
        return False
    module = suspect.module.split(".")
    if one.name == "dtype" and one.where in ("", EVERY_MODULE):
        return suspect.fault == "precision"
    if one.where in ("", EVERY_MODULE):
        words = _HELD_BY.get(one.name.removeprefix("config.").partition("_")[0], ())
        return any(word in module[-1].lower() for word in words)
    globs = one.where.partition(" and ")[0].split(", ")
    return any(
        len(module) - len(parts) in (0, 1)
        and all(a in ("*", b) for a, b in zip(parts, module, strict=False))
        for parts in (glob.split(".") for glob in globs)
    )


# What to do next.


def next_step(report: TraceReport) -> tuple[str, str]:
    """What to do next in words without a full stop, and a command for it."""
    first = report.trace.first
    if first is None and report.padded is not None:
        return (
            "let positions and mask follow from the padding there, as the base does; compare with "
            "--batch-size 8 to see what it costs",
            "",
        )
    if first is None:
        if report.exit_code:
            return "name documents or inputs that both models can read", ""
        return "ask a task whether the models differ where it counts", _comparison(report)
    explained = find_explanations(report)
    if explained:
        names = list_names(list(dict.fromkeys(one.name for one in explained)), most=2)
        return f"give the candidate the base's {names} there, and trace again", ""
    where = module_text(first.module)
    if first.fault == "weights":
        return f"compare the weights of {where} (the command tensors does), and trace again", ""
    if first.fault == "precision":
        return f"compute {where} as the base does, and trace again", ""
    twin = report.trace.twin
    seen = twin is not None and twin.votes  # weights of a recording are not there to be compared
    what = "code" if seen else "code and the weights"
    return f"compare the {what} of {where} with the base's, and trace again", ""


def _comparison(report: TraceReport) -> str:
    """The comparison of the two models, as they were typed."""
    typed = printable(traced_as_comparison(report.command))
    sides = (shlex.quote(side.name) for side in (report.base, report.candidate))
    return typed or printable("evalguard compare --base {} --cand {}".format(*sides))
