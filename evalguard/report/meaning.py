"""What a comparison means in one sentence, and the step to take next.

How large a drift is (sigma) and how sure it is (paired interval, p) are two questions: every
sentence answers both and never lets one stand for the other.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from evalguard import tools
from evalguard.core.compare_report import CompareReport, RunIdentity
from evalguard.core.comparison import Comparison
from evalguard.core.figures import is_figure
from evalguard.core.findings import Finding, FindingKind, FindingValue
from evalguard.core.gate import GateResult, Waiver
from evalguard.core.limits import LimitVerdict
from evalguard.core.repeat_command import (
    as_bisection,
    as_comparison,
    as_tokenizer_search,
    as_trace,
    shell_words,
    without_options,
)
from evalguard.core.verdict import Margin
from evalguard.page import rounding
from evalguard.page.phrases import list_names
from evalguard.page.safe_text import printable
from evalguard.report.distribution_texts import distributions_moved_clause
from evalguard.report.limit_texts import decisive_limit, limit_statement
from evalguard.report.metric_labels import (
    decisive_comparison,
    drift_cells,
    format_percent,
    full_label,
    has_no_sigma,
    judged_comparisons,
    margin_text,
    margin_words,
    metric_margin,
    ungated_regression_text,
    ungated_subtasks,
)

SCORE_MORE = "score more documents: a higher --limit, or a larger task"
ASK_MORE = "ask more: a higher --limit, more requests, or a larger task"


def undecided_text(comparison: Comparison) -> str:
    """Say which kind of undecided it is, and which drift such a run would have shown."""
    lacks = comparison.undecided
    if lacks is None:
        return "undecided"
    kind = {
        "above_margin": "above the margin, chance not excluded",
        "too_few_documents": "too few documents to exclude a drift above the margin",
    }[lacks.kind]
    shown = _detectable_text(comparison)
    return f"{kind}; such a run fails {shown} or more in 80% of cases" if shown else kind


def differing_answers(report: CompareReport, comparison: Comparison) -> Finding | None:
    """The finding that answers to a figure's task are not all the base's; None of any other."""
    of_figure = is_figure(comparison.filter, comparison.metric)
    return next((f for f in other_answers(report) if of_figure and f.task == comparison.task), None)


def other_answers(report: CompareReport) -> list[Finding]:
    """The findings that answers are not all the base's, with their numbers; one a task."""
    findings = [finding for finding in report.findings if finding.kind == "answers_differ"]
    return [f for f in findings if all(isinstance(f.values.get(name), int) for name in _COUNTED)]


_COUNTED = ("documents", "same", "calling", "same_calls")


def same_answers_text(finding: Finding) -> str:
    """How many answers a finding counts as the base's, and calls, where tools are called."""
    values = finding.values
    calls = (
        f"{values['same_calls']:,} of {values['calling']:,} calls and " if values["calling"] else ""
    )
    return f"{calls}{values['same']:,} of {values['documents']:,} answers are the base's"


def hold_answers_step(finding: Finding) -> str:
    """The option that holds a finding's answers to the base's; their calls, where these differ."""
    calls = finding.values["same_calls"] != finding.values["calling"]
    figure = "same_call" if calls else "same_answer"
    return f"to hold them to the base's: --gate-metric {printable(finding.task)}/{figure}=0.9"


def _detectable_text(comparison: Comparison) -> str:
    """The smallest drift that such a run shows, in the unit of the margin."""
    lacks = comparison.undecided
    if lacks is None:
        return ""
    unit = Margin.parse(comparison.margin_text or "1").unit
    change, base = lacks.detectable_change, comparison.base
    if unit == "points" and change is not None:
        return f"{100.0 * change:.2g}pp"
    if unit == "relative" and change is not None and base:
        return f"{100.0 * change / abs(base):.2g}%"
    return "" if lacks.detectable_sigma is None else f"{lacks.detectable_sigma:.2g} sigma"


def decide_step(comparison: Comparison) -> str:
    """Say what would decide it, as an order without a full stop."""
    lacks, used = comparison.undecided, rounding.format_count(comparison.n_used)
    of_answers = is_figure(comparison.filter, comparison.metric)
    if lacks is None:
        return ASK_MORE if of_answers else SCORE_MORE
    needed = lacks.needed_n or lacks.fixed_margin_n
    if needed is None and comparison.planned_scatter is None:
        return ASK_MORE if of_answers else SCORE_MORE
    if needed is None:
        wider = f": --margin {lacks.decidable_margin}" if lacks.decidable_margin else ""
        return f"more documents do not decide at this margin; a wider one does{wider}"
    at = ""
    if lacks.needed_n is None:
        own = margin_text(comparison.margin or 0.0)
        at = f" with --margin {lacks.fixed_margin} ({own} sigma now; sigma shrinks as they grow)"
    total = comparison.n_total
    if not 0 < total < needed:
        return f"score about {rounding.format_estimate(needed)} documents, not {used}{at}"
    every = "" if comparison.n_used == total else f"score all {rounding.format_count(total)}: "
    wider = f"--margin {lacks.decidable_margin} is the smallest that they decide, or "
    return (
        f"{every}{printable(comparison.task)} has {rounding.format_count(total)} documents, about "
        f"{rounding.format_estimate(needed)} are needed{at}; "
        f"{wider if lacks.decidable_margin else ''}"
        f"{'add requests, or take a larger task' if of_answers else 'take a larger task'}"
    )


def tensors_command(base: RunIdentity, candidate: RunIdentity, *options: str) -> str:
    """Return the command that compares the files of two models; "" where one has no folder."""
    if not base.folder or not candidate.folder:
        return ""
    folders = (shlex.quote(printable(side.folder)) for side in (base, candidate))
    return " ".join(("evalguard tensors", *options, *folders))


def other_classes(report: CompareReport) -> tuple[str, str] | None:
    """The classes that base and candidate were loaded as, where they are two; else None."""
    named = _side_values(report).get("code.class")
    if not isinstance(named, tuple) or len(named) != 2:
        return None
    base, candidate = named
    return None if not base or not candidate else (printable(str(base)), printable(str(candidate)))


def own_code(report: CompareReport) -> str:
    """The candidate's class, where code that a checkpoint brings computes; "" where none does."""
    named = _side_values(report).get("code.remote_class")
    return printable(str(named[1])) if isinstance(named, tuple) and len(named) == 2 else ""


def reads_other_tokens(report: CompareReport) -> bool:
    """Whether the rules of the two tokenizers differ, so that a trace would be refused."""
    return "tokenizer.rules" in _side_values(report)


def differs_in(report: CompareReport, part: str) -> bool:
    """Whether the sides hold something else in their "configs", "tokenizer", "code"."""
    return any(name.startswith(f"{part}.") for name in _side_values(report))


def _side_values(report: CompareReport) -> Mapping[str, FindingValue]:
    values = (finding.values for finding in report.findings if finding.kind == "sides_differ")
    return next(values, {})


def gives_no_number(report: CompareReport) -> bool:
    """Whether the candidate's scores of some document are nan or infinite, and the base's not."""
    wrong = ("not a number", "infinity", "minus infinity")
    return any(
        document.side == "candidate" and document.candidate_is in wrong
        for document in report.broken_documents
    )


def margin_below(comparison: Comparison) -> str:
    """A margin at which a real drift that is within its own is searched; "" where it is not real.

    Half of it, so that what makes most of it stands out.
    """
    sigma, interval = comparison.sigma, comparison.sigma_interval
    if sigma is None or interval is None or interval[0] <= 0.0 or not math.isfinite(sigma):
        return ""
    return f"{sigma / 2:.2g}"


def accepted_lines(gate: GateResult) -> list[str]:
    """A line for each, for a person."""
    return [
        f"accepted: {printable(item.key[0])} {printable(item.key[2])}, {_waiver_terms(item.waiver)}"
        for item in gate.accepted
    ]


def accepted_clause(gate: GateResult, key: tuple[str, str, str]) -> str:
    """What a sentence about a metric adds; "" where it is not accepted."""
    waiver = next((item.waiver for item in gate.accepted if item.key == key), None)
    return "" if waiver is None else f"; that is accepted {_waiver_terms(waiver)}"


def _waiver_terms(waiver: Waiver) -> str:
    until = printable(waiver.until)
    return f"up to {waiver.up_to:g} sigma until {until}: {printable(waiver.reason)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What a report means: a sentence, what to do next, and the command for it ("" if none).

    ``answers``: what a bisection adds to the sentence, one for each of its searches. ``trace``:
    the command that looks inside the model, where that may say more.
    """

    lead: str
    next_step: str
    command: str = ""
    answers: tuple[str, ...] = ()
    trace: str = ""

    @property
    def sentence(self) -> str:
        """All of it."""
        return " ".join((self.lead, *self.answers))


def derive_meaning(report: CompareReport) -> Meaning:
    """Say what ``report`` means, by the comparison that decided it."""
    worst, limit = decisive_comparison(report), decisive_limit(report)
    if limit is not None:
        return _limit_meaning(report, limit)
    if worst is None:
        return Meaning(
            lead="Nothing was compared, so nothing is known.",
            next_step="name tasks that both sides have (--tasks)",
        )
    beside = ungated_regression_text(report)
    statement = f"{_outcome_statement(report, worst)}{_unknown(report, worst)}"
    sentence = f"{statement}; {beside}." if beside else f"{statement}."
    return _with_steps(report, sentence, _next_step(report, worst))


def _with_steps(report: CompareReport, sentence: str, step: tuple[str, str]) -> Meaning:
    """A sentence with what to do next: of scores that are no numbers the weights and a trace."""
    if not gives_no_number(report):
        beside = other_classes(report) is not None or _searches_configs(report)
        inside = trace_command(report) if beside and _is_lost(report) else ""
        trace = "" if inside == step[1] else inside
        return Meaning(lead=sentence, next_step=step[0], command=step[1], trace=trace)
    weights = tensors_command(report.base, report.candidate, "--invariant finite")
    inside = trace_command(report)
    if weights:
        purpose = "to see whether the weights hold nan or infinite values"
        return Meaning(lead=sentence, next_step=purpose, command=weights, trace=inside)
    if inside:
        purpose = "to see where the first nan or infinite value is, and whether weights hold it"
        return Meaning(lead=sentence, next_step=purpose, command=inside)
    return Meaning(lead=sentence, next_step=step[0], command=step[1])


def _is_lost(report: CompareReport) -> bool:
    """Whether the gate found that something is worse."""
    return report.gate.state == "regressed"


def _limit_meaning(report: CompareReport, limit: LimitVerdict) -> Meaning:
    sentence = f"{limit_statement(report, limit)}."
    if limit.state == "failed":
        return Meaning(lead=sentence, next_step="measure it, or take the limit away")
    if limit.state == "undecided":
        return Meaning(lead=sentence, next_step=_decide_limit(limit))
    return _with_steps(report, sentence, _undo(report))


def _decide_limit(limit: LimitVerdict) -> str:
    if not limit.of_figure:
        return SCORE_MORE
    low, high = limit.interval or (-math.inf, math.inf)
    within = high <= limit.limit if limit.kind == "upper" else low >= limit.limit
    if within or limit.value == limit.limit:  # what keeps it open is what nobody knows
        return f"make {printable(limit.metric)} known of every answer, or widen the limit"
    return ASK_MORE


def _outcome_statement(report: CompareReport, worst: Comparison) -> str:
    if worst.outcome == "failed":
        return _failed(report, worst)
    if worst.outcome == "regressed":
        return _regressed(report, worst) + _gate_clause(report, worst)
    if worst.outcome == "undecided":
        return _undecided(report, worst)
    if worst.outcome == "degraded":
        return _degraded(report, worst) + _gate_clause(report, worst)
    if worst.outcome == "improved":
        return _improved(report, worst)
    return _unchanged(report, worst)


def _failed(report: CompareReport, worst: Comparison) -> str:
    candidate, base = _names(report)
    return (
        f"Whether {candidate} is worse than {base} on {full_label(worst)} is not known, "
        f"because {_clause(worst.reason) or 'no number came out'}"
    )


def _regressed(report: CompareReport, worst: Comparison) -> str:
    candidate, base = _names(report)
    where = f"on {full_label(worst)}"
    if worst.sigma is None or worst.sigma_interval is None or not _finite(worst):
        verb = "is" if worst.significant else "measures"
        return f"{candidate} {verb} worse than {base} {where}: {_clause(worst.reason)}"
    size = f"by {_size(report, worst)}"
    if worst.significant:
        return f"{candidate} is worse than {base} {size} {where} ({_certainty(report, worst)})"
    return (
        f"{candidate} measures worse than {base} {size} {where}, but that it is worse at all is "
        f"not sure ({_certainty(report, worst)})"
    )


def _undecided(report: CompareReport, worst: Comparison) -> str:
    candidate, base = _names(report)
    why = "" if worst.undecided is None else f": {undecided_text(worst)}"
    name = "drift" if has_no_sigma(worst) else "sigma"
    return (
        f"{_documents(worst.n_used)} cannot tell whether {candidate} is worse than {base} by "
        f"more than {margin_words(report, worst, unit=' standard errors')} on {full_label(worst)} "
        f"({name} {_signed_size(report, worst)}, {_certainty(report, worst)}){why}"
    )


def _degraded(report: CompareReport, worst: Comparison) -> str:
    candidate, base = _names(report)
    high, margin = (worst.sigma_interval or (0.0, 0.0))[1], metric_margin(report, worst)
    if worst.tolerated is not None and worst.drift_interval is not None:
        high, margin = worst.drift_interval[1], worst.tolerated
    beyond = ", although its interval reaches above" if high > margin else ""
    return (
        f"{candidate} is worse than {base} by {_size(report, worst)} on "
        f"{full_label(worst)} ({_certainty(report, worst)}): real, but within the margin of "
        f"{margin_words(report, worst)}{beyond}"
    )


def _improved(report: CompareReport, worst: Comparison) -> str:
    candidate, base = _names(report)
    if not _finite(worst):
        return f"{candidate} is better than {base} on {full_label(worst)}: {_clause(worst.reason)}"
    return (
        f"{candidate} is better than {base} by {_size(report, worst)} on "
        f"{full_label(worst)} ({_interval(report, worst)}), and measurably worse on no "
        f"{'other metric that the gate judges' if ungated_subtasks(report) else 'metric'}"
    )


def _unchanged(report: CompareReport, worst: Comparison) -> str:
    candidate, base = _names(report)
    if all(c.bit_identical for c in report.comparisons):
        moved = distributions_moved_clause(report)
        return f"{candidate} gives every document the same score as {base}, to the last bit{moved}"
    about = judged_comparisons(report)
    several = len(about) > 1
    margin = f"the margin of {margin_words(report, worst)}"
    given = {c.margin_text or margin_words(report, c) for c in about}
    if len(given) == 1 and len({metric_margin(report, c) for c in about}) > 1:
        margin = f"the margin of {printable(worst.margin_text)}"
    elif len(given) > 1:
        margin = "its own margin"
    return (
        f"{candidate} is not measurably worse than {base}: "
        f"{'the largest' if several else 'its'} drift is {_signed_size(report, worst)}"
        f"{'' if has_no_sigma(worst) else ' standard errors'}, on {full_label(worst)} "
        f"({_interval(report, worst)}), and "
        f"{'every' if several else 'the'} interval ends below {margin}"
    )


def _gate_clause(report: CompareReport, worst: Comparison) -> str:
    gate = report.gate
    key = worst.key
    if accepted := accepted_clause(gate, key):
        return accepted
    if worst.outcome == "degraded":
        return f"; the gate (fail on {gate.fail_on}) allows none" if key in gate.regressed else ""
    allowed = margin_words(report, worst)
    if key not in gate.gated:
        return "; the gate does not judge this metric"
    if key in gate.undecided:
        return (
            f"; that is over the margin of {allowed}, but the gate (fail on {gate.fail_on}) asks "
            "for more evidence"
        )
    if worst.certain or not worst.significant:
        return f"; the gate allows {allowed}"
    return f"; the gate allows {allowed}, and the interval reaches below that"


def _unknown(report: CompareReport, worst: Comparison) -> str:
    """Say what a sentence about other metrics leaves unknown."""
    number = sum(c.outcome == "failed" for c in judged_comparisons(report))
    if worst.outcome == "failed" or not number:
        return ""
    return f"; nothing is known about {number} metric{'s' if number > 1 else ''} that failed"


def _next_step(report: CompareReport, worst: Comparison) -> tuple[str, str]:
    if worst.outcome == "failed" and worst.n == 1:
        return decide_step(worst), ""
    differing = differing_answers(report, worst)
    if worst.outcome == "failed" and worst.metric == "same_call" and differing is not None:
        return (
            f"score them by a task that knows the right calls; {hold_answers_step(differing)}",
            "",
        )
    if worst.outcome == "failed" and is_figure(worst.filter, worst.metric):
        name = printable(f"{worst.task}/{worst.metric}")
        return f"have it shown, or take it off the gate: advisory: [{name}]", ""
    if worst.outcome == "failed":
        return "remove that cause and run again; no other metric stands in for it", ""
    unsure = worst.outcome == "regressed" and not worst.significant
    if worst.outcome == "undecided" or unsure or report.gate.state == "undecided":
        held = "" if differing is None else f"{hold_answers_step(differing)}; or "
        return f"{held}{decide_step(worst)}", ""
    if worst.outcome == "degraded" and report.bisect is None:
        return _search_below(report, worst) or _undo(report)
    if worst.outcome in ("regressed", "degraded"):
        return _undo(report)
    if worst.outcome == "improved":
        nothing = ("nothing to repair; make sure that a difference is expected here", "")
        return _step_of_findings(report) or nothing
    if ungated_regression_text(report):
        return (
            "nothing, by the gate; what it does not judge (advisory, or not in only) is not "
            "searched either: gate it for that",
            "",
        )
    return _step_of_findings(report) or publish_step(report) or ("nothing to do", "")


def publish_step(report: CompareReport) -> tuple[str, str] | None:
    """What makes a model card of a finished run; None where the candidate is not quantised."""
    size = report.candidate.size
    bits = None if size is None else size.bits_per_weight
    if report.run_folder is None or bits is None or bits > _QUANTISED:
        return None
    folder = shlex.quote(printable(report.run_folder))
    return "to publish it with these figures", f"evalguard card {folder}"


_QUANTISED = 12.0  # bits a weight: 8 of a small model with what stays unquantised


def _step_of_findings(report: CompareReport) -> tuple[str, str] | None:
    """What to do where nothing fell and something was found all the same; None: nothing was."""
    for kind, advice in _STEPS.items():
        for finding in (finding for finding in report.findings if finding.kind == kind):
            step = advice(report, finding) if callable(advice) else advice and (advice, "")
            if step:
                return step
    return None


def _name_candidate(_report: CompareReport, finding: Finding) -> tuple[str, str]:
    if finding.values.get("proved"):
        return "name what the conversion made as the candidate: this one is the base", ""
    return "make sure that the candidate is what the conversion made: both look like one model", ""


def _enter_padding(report: CompareReport, _finding: Finding) -> tuple[str, str]:
    inside = trace_command(report)
    if inside:
        return "to see where in the model padding enters", inside
    return "compare in padded batches (--batch-size 8), to see what padding costs", ""


def _enter_distributions(report: CompareReport, _finding: Finding) -> tuple[str, str]:
    inside, limit = trace_command(report), "--gate-metric kl_mean=0.01"
    if inside:
        return f"to see where the distributions move (a limit on them: {limit})", inside
    return f"see which tokens moved (report.html), or hold them to a limit: {limit}", ""


def _measure_distributions(report: CompareReport, finding: Finding) -> tuple[str, str] | None:
    """By reference: it needs neither both models at once nor what the cache holds."""
    if finding.values.get("served"):
        return "name the model in place of its server, to compare the distributions, too", ""
    if finding.values.get("by_reference") is False:
        return None
    typed = as_comparison(report.command) or _command_by_names(report, "compare")
    if not typed:
        return "compare the distributions, too: --distributions reference", ""
    words = without_options(shell_words(typed), with_value=("--distributions",))
    command = printable(shlex.join([*words, "--distributions", "reference"]))
    return "to compare the distributions, too", command


def _read_answers(report: CompareReport, _finding: Finding) -> tuple[str, str] | None:
    answers = other_answers(report)
    if not answers:
        return None
    return f"read answers that differ (report.html); {hold_answers_step(answers[0])}", ""


def _take_other_task(report: CompareReport, _finding: Finding) -> tuple[str, str] | None:
    dull = _insensitive_metrics(report)
    if not dull:
        return None
    advice = (
        "score a harder task"
        if all(comparison.base == 1.0 for comparison in dull)
        else "score a task at which the base is far above chance"
    )
    if len(dull) == len(judged_comparisons(report)):
        return f"{advice}: this one can hardly fail", ""
    suffix = f" and {len(dull) - 1} more" if len(dull) > 1 else ""
    return f"to see a loss of {full_label(dull[0])}{suffix}, {advice}", ""


def _test_the_rest(_report: CompareReport, finding: Finding) -> tuple[str, str] | None:
    """Which texts would test what the two models hold otherwise; None where nobody says."""
    of, tokens = finding.values, finding.values.get("beyond")
    longer, other_tokens = of.get("longer"), of.get("other_tokens")
    if isinstance(tokens, int) and isinstance(longer, tuple) and longer:
        length = rounding.format_count(tokens)
        return f"to test {printable(str(longer[0]))}, score texts of more than {length} tokens", ""
    if of.get("generated"):
        return "to test how texts end, score a task that generates them", ""
    if of.get("chat"):
        return "to test the chat template, apply it (--apply-chat-template)", ""
    if isinstance(other_tokens, tuple) and other_tokens:
        return f"to test {printable(str(other_tokens[0]))}, score texts in which tokens differ", ""
    return None


def _find_unused(report: CompareReport, _finding: Finding) -> tuple[str, str]:
    command = tensors_command(report.base, report.candidate)
    return "see which weights of the checkpoint nothing reads", command


_Step = Callable[[CompareReport, Finding], "tuple[str, str] | None"]
# What a finding asks for where nothing fell, gravest first; "": nothing, so that "nothing to do"
# may stand beside it. Every kind has its line. First what makes the pass say nothing, or little;
# then what makes both sides' numbers doubtful; then what keeps the next run from them.
_STEPS: Mapping[FindingKind, str | _Step] = {
    "same_model": _name_candidate,
    "scores_unrelated": "make sure that both sides answered the same documents",
    "broken_documents": "read the broken documents (-v, report.html)",
    "padding_changes": _enter_padding,
    "distributions_moved": _enter_distributions,
    "answers_go_on": "let the candidate's texts end where the base's do, and run again",
    "broken_answers": "mend what breaks these answers (read some: -v, report.html), and run again",
    "says_nothing": "read the answers (-v, report.html): they do not depend on the model",
    "first_answers_fail": "mend what cuts or empties these answers, and run again",
    "no_answer_found": (
        "read texts without an answer (-v, report.html): look at prompt, chat template and filter"
    ),
    "not_judged": "score what the verdict is without, or take it off the gate",
    "setting_unread": "take the inert setting away, or set what a forward pass reads",
    "deltas_lost": "build the merge in a wider dtype, and run again",
    "weights_unused": _find_unused,
    "scores_depend": "mend what lets other tokens change a score, and run again",
    "far_better": "make sure that both sides are scored alike",
    "distributions_unknown": _measure_distributions,
    "answers_differ": _read_answers,
    "task_shows_little": _take_other_task,
    "dependence_unknown": "compare more documents, or declare what they share (--cluster FIELD)",
    "rests_on_documents": "compare more documents: a few decide this verdict",
    "prompts_cut": "let the model read whole prompts (max_length), and run again",
    "bos_twice": "let BOS be written once (add_bos_token), and run again",
    "chosen_against_odds": (
        "let the engine sample from what it shows (temperature 0, no penalties), and run again"
    ),
    "stops_left_in": "have the server leave stop sequences out, and run again",
    "untested_differences": _test_the_rest,
    "one_revision": "give each address a revision of its own",
    "waiver": "renew or correct the waiver, or take it out of the guard file",
    "not_stored": "store what was not: make room or name another place, and run again",
    "loss_is_spread": "",  # of losses that the gate decides
    "prompts_differ": "",  # declared by who asked
    "sides_differ": "",  # what the verdict is about
    "server_varies": "",  # a part of every paired difference, and of its interval
    "dependent_documents": "",  # p and interval allow for it
    "made_differently": "",  # what rounding may follow from; no score differs by it alone
    "run_chosen": "",
    "batch_size_effect": "",  # asked for
    "own_reference": "",
}


def _insensitive_metrics(report: CompareReport) -> list[Comparison]:
    """The judged metrics that a finding calls unable to show a loss."""
    findings = [finding for finding in report.findings if finding.kind == "task_shows_little"]
    named = {"/".join((finding.task, finding.filter, finding.metric)) for finding in findings}
    for finding in findings:
        several = finding.values.get("metrics")
        named |= {str(key) for key in several} if isinstance(several, tuple) else set()
    return [
        comparison for comparison in judged_comparisons(report) if "/".join(comparison.key) in named
    ]


def _undo(report: CompareReport) -> tuple[str, str]:
    suspects = _suspects(report)
    if len(suspects) > 1 and not _was_searched(report):
        command = _bisection(report)
        if command:
            return "to name the culprits", command
    if suspects:
        command = _with_setting(report, suspects[0])
        return (
            "to see what one setting costs"
            if command
            else f"compare again with setting {printable(suspects[0])} at reference"
        ), command
    if reads_other_tokens(report) and report.bisect is None:
        command = _tokenizer_search(report)
        if command:
            return "to see what the tokenizer costs", command
    classes = other_classes(report)
    if classes is not None and trace_command(report):
        command = "" if report.bisect is not None else search_layers_command(report)
        if command:
            named = f"{classes[1]} where the base is {classes[0]}"
            return f"to see which layers another class costs ({named})", command
        return read_as_step(classes), ""
    if _searches_configs(report):
        command = _bisection(report)
        if command:
            return "to name the culprits (the configs of the two models differ)", command
    inside = trace_command(report)
    if inside:
        return "to see where in the model it comes from", inside
    if report.run_folder:
        return f"look at the documents that moved, in {printable(report.run_folder)}", ""
    return "compare again with one change of the conversion undone", ""


def _searches_configs(report: CompareReport) -> bool:
    """Whether a bisection would have its settings from the configs of two Hugging Face models."""
    sides = (report.base, report.candidate)
    searchable = all(side.kind == "model" and side.model_type in _TRACED_BASE for side in sides)
    done = _was_searched(report) and report.bisect_ended != "undeclared"
    return searchable and not (done or _suspects(report)) and differs_in(report, "configs")


def _was_searched(report: CompareReport) -> bool:
    """Whether a bisection came to its end, or there is a reason against one.

    One that was interrupted goes on, typed once more, from the answers that are kept.
    """
    explained = bool(report.bisect_reason) and report.bisect_ended != "interrupted"
    return report.bisect is not None or explained


def _search_below(report: CompareReport, worst: Comparison) -> tuple[str, str] | None:
    """The search of what makes a real drift within the margin; None where one setting differs."""
    margin, suspects = margin_below(worst), _suspects(report)
    if not margin or len(suspects) < 2 or report.bisect_reason:
        return None
    command = _bisection(report)
    if not command:
        return None
    words = without_options(shell_words(command), with_value=("--margin",))
    named = list_names(suspects, most=3)
    return (
        f"to name which of {named} makes it, although it is within the margin",
        printable(shlex.join([*words, "--margin", margin])),
    )


def _suspects(report: CompareReport) -> list[str]:
    """The candidate's settings that are not at their reference value."""
    return [
        setting.name for setting in report.candidate.settings if setting.value != setting.reference
    ]


def _with_setting(report: CompareReport, name: str) -> str:
    """Return the command that undoes one setting: the user's own, where there was one."""
    addition = f"--set {shlex.quote(printable(name) + '=reference')}"
    typed = printable(as_comparison(report.command)) or _command_by_names(report, "compare")
    return f"{typed} {addition}" if typed else ""


def _bisection(report: CompareReport) -> str:
    """Return the command that searches the settings, likewise; "" for the demo's."""
    if not tools.has("attach_bisection"):
        return ""
    if report.command:
        return printable(as_bisection(as_comparison(report.command)))
    return _command_by_names(report, "bisect")


def _tokenizer_search(report: CompareReport) -> str:
    """Return the command that searches the tokenizer; "" where no task is known to ask."""
    if not tools.has("attach_bisection"):
        return ""
    if report.command:
        return printable(as_tokenizer_search(report.command))
    search = _command_by_names(report, "bisect")
    return f"{search} --allow-differing tokens" if search else ""


def search_layers_command(report: CompareReport) -> str:
    """Return the command that searches the candidate's layers, likewise."""
    command = _bisection(report)
    if not command:
        return ""
    words = without_options(shell_words(command), with_value=("--over",))
    return printable(shlex.join([*words, "--over", "layers"]))


# Model types whose activations can be seen: of the base, which has to be a torch model, and of the
# candidate.
_TRACED_BASE = ("hf", "hf-auto", "huggingface")
_TRACED = (*_TRACED_BASE, "transformers", "transformer_lens", "llama_cpp", "fla", "onnx")


def trace_command(report: CompareReport) -> str:
    """Return the command that traces the two models, likewise; "" where one cannot be traced."""
    sides = (report.base, _TRACED_BASE), (report.candidate, _TRACED)
    if reads_other_tokens(report):  # it would be refused
        return ""
    if any(side.kind != "model" or side.model_type not in kinds for side, kinds in sides):
        return ""
    if not tools.is_there("tracing"):
        return ""
    return printable(as_trace(report.command)) or _command_by_names(report, "trace")


def _command_by_names(report: CompareReport, job: str) -> str:
    """A command with both sides by their names; "" where the base's name leads to no model."""
    if report.base.kind == "stored run":
        return ""
    base, candidate = (shlex.quote(side.name) for side in (report.base, report.candidate))
    return printable(f"evalguard {job} --base {base} --cand {candidate}")


def _names(report: CompareReport) -> tuple[str, str]:
    return printable(report.candidate.name), printable(report.base.name)


def _finite(comparison: Comparison) -> bool:
    return comparison.sigma is not None and abs(comparison.sigma) < float("inf")


def _signed_size(report: CompareReport, comparison: Comparison) -> str:
    return "0" if comparison.bit_identical else drift_cells(report, comparison)[0]


def _size(report: CompareReport, comparison: Comparison) -> str:
    size = drift_cells(report, comparison)[0].lstrip("+-") or "-"
    return size if has_no_sigma(comparison) else f"{size} standard errors"


def _interval(report: CompareReport, comparison: Comparison) -> str:
    _, low, high = drift_cells(report, comparison)
    if not low:
        return "no interval in sigma, for the base's documents do not scatter"
    if comparison.stopping is not None and comparison.stopping.early:
        documents = rounding.format_count(comparison.n)
        return f"sigma of all {documents} documents lies between {low} and {high}"
    return f"{format_percent(comparison.confidence)} paired interval {low} to {high}"


def _certainty(report: CompareReport, comparison: Comparison) -> str:
    return f"{_interval(report, comparison)}, {rounding.p_value_phrase(comparison.p_value)}"


def _documents(number: int) -> str:
    return "1 document" if number == 1 else f"{rounding.format_count(number)} documents"


def _clause(reason: str) -> str:
    return printable(reason).strip().rstrip(".")


def read_as_step(classes: tuple[str, str]) -> str:
    """Return the step where the candidate is read as another class than the base."""
    return (
        f"read the candidate as {classes[0]} (architectures and model_type in its config.json), or "
        f"port what {classes[1]} computes otherwise"
    )
