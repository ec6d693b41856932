"""What to do after a trace."""

from __future__ import annotations

import shlex

from evalguard.core.repeat_command import as_bisection, traced_as_comparison
from evalguard.core.reports.trace_report import (
    TraceReport,
)
from evalguard.report.trace.hyperparameter_words import find_explanations
from evalguard.report.trace.trace_words import module_text, separating_text, undeclared_text
from evalguard.report.words.advice import tensors_command
from evalguard.report.words.bisection_texts import list_names
from evalguard.report.words.plain_text import printable


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
        if not report.trace.to_the_end and any(one.local for one in report.trace.layers):
            return "record what the model gives out in the end, too, and trace again", ""
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
    separating = separating_text(report)
    if separating and not explained:
        return separating, ""
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
