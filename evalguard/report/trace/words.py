"""A trace in words: its answer, hyper-parameters that may explain it, and what to do next."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from math import isinf
from typing import Literal, get_args

from evalguard.core.repeat_command import as_bisection, traced_as_comparison
from evalguard.core.reports.trace_report import (
    Check,
    HyperparameterDelta,
    HyperparameterVerdict,
    LayerDelta,
    PaddedTwin,
    SuspectModule,
    TraceReport,
)
from evalguard.core.settings import Value
from evalguard.core.tracing.hyperparameters import EVERY_MODULE
from evalguard.core.tracing.points import ROOT
from evalguard.report.words.advice import tensors_command
from evalguard.report.words.bisection import list_names
from evalguard.report.words.plain_text import printable

TraceState = Literal["located", "clear", "unknown"]

CHECKS: dict[Check, str] = {
    "as it runs": "as both run",
    "what it computes": "with both computed in float32",
    "weights": "in its weights",
}
_MOST_TOLD, _MOST_NAMED = 2, 8
_MOST_ENTRIES = 6  # of a list, before the rest is only counted
# How modules are called that hold a hyper-parameter, by the first word of its name.
_HELD_BY = {
    "norm": ("norm", "ln"),
    "attention": ("attn", "attention"),
    "activation": ("act", "mlp", "intermediate"),
    "rope": ("rotary", "rope", "attn", "attention"),
    "tied": ("lm_head", "embed_out", "output", "embed_tokens", "wte", "word_embeddings"),
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


def weights_text(report: TraceReport) -> str:
    """Say which class the candidate's weights look to be of, and why that is the floor."""
    twin = report.trace.twin
    if twin is None or not twin.seen or twin.undeclared:
        return ""
    total = sum(twin.votes.values())
    number = twin.votes.get(twin.seen, 0)
    many = f" ({number} of {total} matrices)" if 0 < number < total else ""
    if twin.declared:
        seen = "rounded by another rule" if twin.seen == "other" else printable(twin.seen)
        return f"Weights: {seen}{many}, taken as the floor: {printable(twin.declared)}."
    if twin.weights == twin.seen and not twin.votes:
        return f"Weights: {printable(twin.seen)}, as the recorded activations show."
    if twin.seen == "other" and twin.votes:
        return "Weights: none is the base's to the last bit; judged by what they compute."
    if twin.weights != twin.seen:
        seen = "another class" if twin.seen == "other" else printable(twin.seen)
        where = "" if twin.votes else " (precision: in a config.yaml beside the activations)"
        return f"Weights: {seen}{many}, which nothing declares{where}: it is no floor."
    dtype = " as stored" if twin.seen != "float32" else " as the base's"
    return f"Weights: {printable(twin.seen)}{many},{dtype}."


def undeclared_text(report: TraceReport) -> str:
    """Say how many matrices are rounded as nobody says; "" where none is."""
    twin = report.trace.twin
    if twin is None or not twin.undeclared:
        return ""
    total = sum(twin.votes.values())
    kinds = sorted(twin.undeclared.items(), key=lambda one: -one[1])
    shown = f"{kinds[0][1]} of {total} weight matrices look rounded to {printable(kinds[0][0])}"
    rest = sum(number for _, number in kinds[1:])
    more = f" and {rest} to other grids" if rest else ""
    return f"{shown}{more}; no setting, quantization_config or dtype says so"


def nonfinite_text(report: TraceReport) -> str:
    """Say where the first nan or infinite value is, and whether weights hold it; "" for none."""
    told = []
    for one in report.trace.nonfinite:
        documents = report.documents
        name = documents[one.sequence].name if one.sequence < len(documents) else "a document"
        at = "" if one.position is None else f", position {one.position}"
        held = "its weights hold none: it is computed"
        if one.weights:
            names = list_names([printable(name) for name in one.weights], most=2)
            held = f"{names} hold{'s' if len(one.weights) == 1 else ''} such values"
        told.append(
            f"The {one.side}'s first nan or infinite value is at {printable(one.point)} "
            f"({printable(name)}{at}); {held}."
        )
    return " ".join(told)


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
        shown = ", ".join(map(hyperparameter_text, value[:_MOST_ENTRIES]))
        more = f", ... {len(value)} values" if len(value) > _MOST_ENTRIES else ""
        return f"[{shown}{more}]"
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
    if one.name == "tied_embeddings" and isinstance(one.base, bool):
        same, own = ("base", "candidate") if one.base else ("candidate", "base")
        return (
            f"the output layer has the embedding's weights in the {same} (tied), and others in the "
            f"{own}: {_TIES[one.base]}"
        )
    if isinstance(one.base, list) and isinstance(one.candidate, list):
        return f"{printable(one.name)} {_lists_text(one.base, one.candidate)}{where}"
    base, candidate = side_texts(one)
    return f"{printable(one.name)} {base} in the base, {candidate} in the candidate{where}"


_TIES = {
    True: "an output layer that is not tied, or is an earlier embedding's",
    False: "tied where it must not be",
}


def _lists_text(base: list[Value], candidate: list[Value]) -> str:
    """Two lists by their lengths, or short ones whole, or from where on they differ."""
    if len(base) != len(candidate):
        return f"has {len(base)} values in the base, {len(candidate)} in the candidate"
    if len(base) <= _MOST_ENTRIES:
        texts = hyperparameter_text(base), hyperparameter_text(candidate)
        return f"{texts[0]} in the base, {texts[1]} in the candidate"
    at = next((n for n, pair in enumerate(zip(base, candidate, strict=True)) if pair[0] != pair[1]))
    texts = hyperparameter_text(base[at]), hyperparameter_text(candidate[at])
    return (
        f"{texts[0]} in the base, {texts[1]} in the candidate, from number {at + 1} of "
        f"{len(base)} on"
    )


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
    found = [one for one in report.hyperparameters if touches_suspect(one, first)]
    # another class explains what nothing else does
    return sorted(found, key=lambda one: one.name == "architecture")


def touches_suspect(one: HyperparameterDelta, suspect: SuspectModule) -> bool:
    """Whether a difference is held by a suspect, or by the module that the suspect is a part of.

    Where it is not known which modules hold it, by the words in their names.
    """
    if one.verdict != "differs" or one.name in _NO_CAUSE:
        return False
    if one.name == "architecture":
        return suspect.fault == "operation"
    module = suspect.module.split(".")
    if one.name == "dtype" and one.where in ("", EVERY_MODULE):
        return suspect.fault == "precision"
    if one.where in ("", EVERY_MODULE):
        words = _HELD_BY.get(one.name.removeprefix("config.").partition("_")[0], ())
        return any(word in module[-1].lower() for word in words)
    globs = one.where.partition(" and ")[0].split(", ")
    # rotary positions are computed in an attention by a module of its own, inside or beside it
    inside = (-1, 0, 1) if one.name.startswith("rope") else (0, 1)
    return any(
        len(module) - len(parts) in inside
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
    if report.trace.nonfinite and any(one.weights for one in report.trace.nonfinite):
        command = _tensors(report, "--invariant finite")
        return ("name all such values in the weights" if command else "write the weights again"), (
            command
        )
    if undeclared_text(report):
        command = _tensors(report)
        beside = "compare the weights; " if command else ""
        return (
            f"{beside}declare how they are rounded (a setting of the guard file, "
            "quantization_config), or convert them again from the base's",
            command,
        )
    explained = find_explanations(report)
    if explained and explained[0].name == "architecture":
        return (
            "see what each layer costs with another class of model; or give the candidate's "
            "config.json the base's architectures and model_type",
            _over_layers(report),
        )
    if any(one.name == "tied_embeddings" for one in explained):
        return "give the candidate's output layer the base's weights, and trace again", ""
    if explained:
        told = dict.fromkeys(one.name for one in explained if one.name != "architecture")
        names = list_names(list(told), most=2)
        return f"give the candidate the base's {names} there, and trace again", ""
    where = module_text(first.module)
    if first.fault == "weights":
        command = _tensors(report)
        if command:
            return f"compare the weights of {where} with the base's", command
        return f"compare the weights of {where} (the command tensors does), and trace again", ""
    if first.fault == "precision":
        return f"compute {where} as the base does, and trace again", ""
    twin = report.trace.twin
    seen = twin is not None and twin.votes  # weights of a recording are not there to be compared
    what = "code" if seen else "code and the weights"
    return f"compare the {what} of {where} with the base's, and trace again", ""


def _tensors(report: TraceReport, *options: str) -> str:
    """The comparison of both models' files; "" where one of them has no folder."""
    return tensors_command(report.base, report.candidate, *options)


def _over_layers(report: TraceReport) -> str:
    """The search of the guilty layer, as the two models were typed."""
    typed = _comparison(report)
    found = as_bisection(typed) if typed else ""
    return printable(f"{found} --over layers") if found and "--over" not in found else ""


def _comparison(report: TraceReport) -> str:
    """The comparison of the two models, as they were typed; "" where no task is known to ask."""
    typed = printable(traced_as_comparison(report.command))
    sides = (shlex.quote(side.name) for side in (report.base, report.candidate))
    command = typed or printable("evalguard compare --base {} --cand {}".format(*sides))
    words = shlex.split(command)
    names = [word.partition("=")[0] for word in words]
    if "--tasks" in names:
        return command
    tasks = dict.fromkeys(one.task for one in report.documents if one.task)
    if tasks:
        return f"{command} --tasks {shlex.quote(printable(','.join(tasks)))}"
    # of two models by the names that a guard file gives them, the tasks are its own
    return command if "--config" in names or "/" not in " ".join(words) else ""
