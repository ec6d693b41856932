"""A trace in words: what it found, by which numbers, and what to do next."""

from __future__ import annotations

import shlex
from math import isinf
from typing import Literal

from evalguard.core.hyperparameters import HyperparameterDelta
from evalguard.core.repeat_command import as_bisection, traced_as_comparison
from evalguard.core.trace_points import ROOT
from evalguard.core.trace_record import Check, LayerDelta, SuspectModule, Trace
from evalguard.core.weight_precision import SAME
from evalguard.page.phrases import list_names
from evalguard.page.safe_text import printable
from evalguard.report.meaning import tensors_command
from evalguard.tracing.trace_report import PaddedTwin, TraceReport


def find_explanations(report: TraceReport) -> list[HyperparameterDelta]:
    """Hyper-parameters that differ at the first suspect, or in the model as a whole.

    Where none does, and the module computes something else: those of which nothing says which
    modules they are of.
    """
    first = report.trace.first
    if first is None:
        return []
    explanations = [delta for delta in report.hyperparameters if touches_suspect(delta, first)]
    if first.fault == "operation" and all(delta.name == "architecture" for delta in explanations):
        explanations += [
            delta
            for delta in report.hyperparameters
            if delta.verdict == "differs" and delta.name.startswith("config.") and not delta.modules
        ]
    # another class explains what nothing else does
    return sorted(explanations, key=lambda delta: delta.name == "architecture")


def touches_suspect(one: HyperparameterDelta, suspect: SuspectModule) -> bool:
    """Whether a difference is held by a suspect, or by the module that the suspect is a part of.

    Where it is not known which modules hold it, by the words in their names.
    """
    if one.verdict != "differs" or one.name in _NO_CAUSE:
        return False
    if one.name == "architecture":
        return suspect.fault == "operation"
    module = suspect.module.split(".")
    if one.name == "dtype" and not one.modules:
        return suspect.fault == "precision"
    if not one.modules:
        words = _HELD_BY.get(one.name.removeprefix("config.").partition("_")[0], ())
        return any(word in module[-1].lower() for word in words)
    if suspect.module == ROOT:  # what the modules right inside hold: a multiplier of its logits
        return one.name != "dtype" and any("." not in glob for glob in one.modules)
    # rotary positions are computed in an attention by a module of its own, inside or beside it
    inside = (-1, 0, 1) if one.name.startswith("rope") else (0, 1)
    return any(
        len(module) - len(parts) in inside
        and all(a in ("*", b) for a, b in zip(parts, module, strict=False))
        for parts in (glob.split(".") for glob in one.modules)
    )


# What explains no error by itself: which code computes, not what.
_NO_CAUSE = frozenset({"attention_implementation"})
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
TraceState = Literal["located", "clear", "unknown"]
CHECKS: dict[Check, str] = {
    "as it runs": "as both run",
    "what it computes": "with both computed in float32",
    "weights": "in its weights",
}


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
        earlier = any(
            suspect.order < first.order and suspect.local_ratio < first.local_ratio / 100
            for suspect in trace.suspects
        )
        beyond = f"is the first module {'far ' if earlier else ''}beyond the floor"
        if not trace.localised:
            beyond = "is the first module at which the error grows beyond the floor"
        return (
            f"{where} {beyond}: {printable(first.operation)}; {format_ratio(first.local_ratio)} "
            f"what rounding makes there {CHECKS[first.check]}"
            + (f"; {missed_text(trace)}" if trace.missed else "")
        )
    if report.padded is not None:
        alone = "" if not measured_modules(report) else "; no module adds error to a text alone"
        return f"{padded_text(report.padded)}{alone}"
    if report.exit_code == 0:
        worst = max(
            (
                layer
                for layer in trace.layers
                if layer.local_ratio is not None and not layer.cancels_at
            ),
            key=lambda layer: layer.local_ratio or 0.0,
            default=None,
        )
        largest = ""
        if worst is not None:
            ratio = format_ratio(worst.local_ratio)
            largest = f"; the largest local error is {ratio} the floor, at {printable(worst.point)}"
        return f"no module introduces more error than rounding does{largest}{_layouts_text(trace)}"
    broken = trace.broken_base
    if broken is not None:
        return (
            f"where the error comes from is not known: from {printable(broken.point)} on the base "
            "itself is nan or infinite, and no error can be told there"
        )
    measured = [layer for layer in trace.layers if layer.local]
    if trace.missed:
        return missed_text(trace)
    if measured and not trace.to_the_end:
        last = printable(measured[-1].point)
        return (
            f"no module up to {last} introduces more error than rounding does, and behind it "
            "nothing was compared"
        )
    why = next(iter((*report.notes, *trace.caveats)), "nothing could be measured")
    return f"where the error comes from is not known: {printable(why)}"


def _layouts_text(trace: Trace) -> str:
    number = len(trace.other_layouts)
    if not number:
        return ""
    return f"; {number} module{'s' if number > 1 else ''} laid out otherwise, which cancels"


def cancels_text(one: SuspectModule) -> str:
    """Say that a module is laid out otherwise, and where that is undone.

    Seen by ``measure/cancelling.py`` where it cancels exactly, by ``measure/relayouts.py`` where
    weights were rounded anew.
    """
    return f"another layout, cancels at {printable(one.cancels_at)}"


def missed_text(trace: Trace) -> str:
    """Say how many points were to be compared and were not, with the first; there is one."""
    missed = trace.missed
    number = len(
        {layer.name for layer in missed} | {layer.point for layer in trace.layers if layer.local}
    )
    many = len({point.name for point in missed})
    first = missed[0]
    return (
        f"{many} of {number} points that were to be compared could not be, as "
        f"{printable(first.name)}: {printable(first.reason)}"
    )


def measured_modules(report: TraceReport) -> bool:
    """Whether any module's error was measured."""
    return any(layer.local or layer.accumulated for layer in report.trace.layers)


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
    remaining = len(report.trace.suspects) - 1
    if remaining > 0:
        text += f". {remaining} more module{'s' if remaining > 1 else ''} beyond the floor"
    largest = report.trace.suspects[0]
    if largest.module != first.module:
        text += f", the largest {printable(largest.module)} ({format_ratio(largest.local_ratio)})"
    return f"{text}."


def separating_text(report: TraceReport) -> str:
    """Say which line of the name map tells apart what ran before the first suspect's point.

    A library shows what it shows: of a model that it runs there is no more to record.
    """
    first = report.trace.first
    point = None if first is None else _find_layer(report, first.point)
    if point is None or not point.separating:
        return ""
    if report.candidate.model_type:
        return (
            f"compare the code and the weights {printable(point.place)} with the base's: model "
            f"type {printable(report.candidate.model_type)} shows nothing there"
        )
    name = printable(point.separating)
    return (
        f"tell apart what ran before {printable(point.point)}: record {name} too, by a line of the "
        f'name map: - {{base: "{name}", cand: "ITS NAME IN THE DUMP"}}'
    )


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
        halves = "" if twin.votes or twin.dtype in (twin.seen, SAME) else twin.dtype
        computed = f", computed in {printable(halves)}" if halves else ""
        return f"Weights: {seen}{many}{computed}, taken as the floor: {printable(twin.declared)}."
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
    kinds = sorted(twin.undeclared.items(), key=lambda item: -item[1])
    shown = f"{kinds[0][1]} of {total} weight matrices look rounded to {printable(kinds[0][0])}"
    rest = sum(number for _, number in kinds[1:])
    suffix = f" and {rest} to other grids" if rest else ""
    return f"{shown}{suffix}; no setting, quantization_config or dtype says so"


def nonfinite_text(report: TraceReport) -> str:
    """Say where the first nan or infinite value is, and whether weights hold it; "" for none."""
    sentences = []
    for value in report.trace.nonfinite:
        documents = report.documents
        name = documents[value.sequence].name if value.sequence < len(documents) else "a document"
        at = "" if value.position is None else f", position {value.position}"
        held = "its weights hold none: it is computed"
        if value.weights:
            names = list_names([printable(name) for name in value.weights], most=2)
            held = f"{names} hold{'s' if len(value.weights) == 1 else ''} such values"
        sentences.append(
            f"The {value.side}'s first nan or infinite value is at {printable(value.point)} "
            f"({printable(name)}{at}); {held}."
        )
    return " ".join(sentences)


def _find_layer(report: TraceReport, point: str) -> LayerDelta | None:
    return next((layer for layer in report.trace.layers if layer.point == point), None)


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
        if report.trace.missed:
            return (
                "lay these tensors out as the base has them, by rules of the name map (transpose, "
                "reshape, split ...), or ignore them there",
                "",
            )
        if not report.trace.to_the_end and any(layer.local for layer in report.trace.layers):
            return "record what the model gives out in the end, too, and trace again", ""
        if report.exit_code:
            return "name documents or inputs that both models can read", ""
        return "ask a task whether the models differ where it counts", _comparison(report)
    if report.trace.nonfinite and any(value.weights for value in report.trace.nonfinite):
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
    if any(delta.name == "tied_embeddings" for delta in explained):
        return "give the candidate's output layer the base's weights, and trace again", ""
    separating = separating_text(report)
    if separating and not explained:
        return separating, ""
    if explained:
        settings = dict.fromkeys(delta.name for delta in explained if delta.name != "architecture")
        names = list_names(list(settings), most=2)
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
    bisection = as_bisection(typed) if typed else ""
    return (
        printable(f"{bisection} --over layers") if bisection and "--over" not in bisection else ""
    )


def _comparison(report: TraceReport) -> str:
    """The comparison of the two models, as they were typed; "" where no task is known to ask."""
    typed = printable(traced_as_comparison(report.command))
    sides = (shlex.quote(side.name) for side in (report.base, report.candidate))
    command = typed or printable("evalguard compare --base {} --cand {}".format(*sides))
    words = shlex.split(command)
    names = [word.partition("=")[0] for word in words]
    if "--tasks" in names:
        return command
    tasks = dict.fromkeys(document.task for document in report.documents if document.task)
    if tasks:
        return f"{command} --tasks {shlex.quote(printable(','.join(tasks)))}"
    # of two models by the names that a guard file gives them, the tasks are its own
    return command if "--config" in names or "/" not in " ".join(words) else ""
