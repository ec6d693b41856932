"""Several candidates of one base: each judged by itself, and the steps of a chain between them."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evalguard.comparison.asked_comparison import StoredRequest
from evalguard.comparison.compare import RecurringBase, compare_sides, resolve_request
from evalguard.comparison.ending import finish_resumed_run, store_run
from evalguard.comparison.finished_comparison import FinishedComparison
from evalguard.comparison.judge import build_report
from evalguard.comparison.result import CompareResult
from evalguard.config.options import CompareOptions, make_options
from evalguard.core.compare_report import CompareReport
from evalguard.core.exit_code import EXIT_GIT_BISECT_SKIP
from evalguard.core.option_words import Format
from evalguard.core.redaction import redacted_text
from evalguard.core.repeat_command import as_bisection, as_one_pair
from evalguard.core.result import Result
from evalguard.engine.bisect_choice import names_off_reference
from evalguard.engine.choices import with_workers
from evalguard.engine.interrupts import interruptible
from evalguard.engine.pair_waivers import with_start_date
from evalguard.engine.servers import keep_servers
from evalguard.engine.side_figures import with_named_figures
from evalguard.engine.sources import ModelSource, Source
from evalguard.errors import EXIT_FAILED, EvalguardError, Interrupted, UsageError, error_text
from evalguard.page.progress import ProgressLine
from evalguard.report.formats import choose_format
from evalguard.report.metric_labels import decisive_comparison
from evalguard.run_token import run_scope
from evalguard.several.kl_split import split_kl
from evalguard.several.several_page import SEVERAL_FORMATS, render_several, several_document
from evalguard.several.several_report import KlSplit, NoVerdict, SeveralReport, Step, step_drifts
from evalguard.store.atomic_files import check_output, write_output

_LOG = logging.getLogger(__name__)
_SINGLE_CANDIDATE_OPTIONS = ("cand_model_args", "cand_set", "save_reference", "floor")
_Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class SeveralResult(Result[SeveralReport]):
    """Finished comparisons of several candidates with one base.

    ``results`` are those of the candidates that have a verdict, each like that of ``compare``.
    ``problems`` say what could not be written or kept.
    """

    results: tuple[CompareResult, ...]
    problems: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the gate of every candidate passed."""
        return self.report.state == "passed"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON contract (schema ``evalguard.compare-several/1``) as plain data."""
        return several_document(self.report)

    def rendered(self, chosen: Format) -> str:
        """Return the report in a format of ``SEVERAL_FORMATS``, as the text of a file."""
        return SEVERAL_FORMATS[chosen](self.report)

    def render(self, *, width: int = 80, color: bool = False, verbose: bool = False) -> str:
        """Return the command line's screen; with ``verbose`` every candidate's whole report."""
        return render_several(self.report, width=width, color=color, verbose=verbose)


@run_scope()
def compare_several(
    base: str | Path,
    candidates: Sequence[str | Path],
    options: CompareOptions | None = None,
    *,
    chain: bool = False,
    **given: Any,
) -> SeveralResult:
    """Compare several candidates with one base, which is scored once.

    Each has its verdict by its own gate, and its own run folder. Where one was made from another
    (``extends`` in the guard file, or the order given with ``chain``), its drift is split over the
    steps, and the settings of the step that drifts most are searched.

    Args:
        base, candidates: as for ``compare``.
        options: of every comparison; ``given`` are fields of it that override it.
        chain: each candidate was made from the one before it.

    Raises:
        UsageError: for names, options or guard files that cannot be used.
        EvaluationError: if no candidate has a verdict; else a candidate without one is a result.
        Interrupted: on Ctrl-C.
    """
    options = with_start_date(make_options(options, **given))
    specs = tuple(map(str, candidates))
    _check_options(specs, options)
    with keep_servers():
        return _SeveralRun(base=str(base), options=options, cwd=Path.cwd()).run(specs, chain=chain)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SeveralRun:
    base: str
    options: CompareOptions
    cwd: Path

    def options_of(self, spec: str) -> CompareOptions:
        """Options of one comparison; the files that were asked for are those of all of them."""
        command = as_one_pair(self.options.command, spec)
        return replace(self.options, output=(), output_format=None, command=command)

    def options_of_step(self, earlier: str, spec: str) -> CompareOptions:
        """Options of a step: what was said about the base says nothing about a candidate."""
        return replace(
            self.options_of(spec),
            base_model_args={},
            base_set={},
            command=as_one_pair(self.options.command, spec, base=earlier),
        )

    def run(self, specs: Sequence[str], *, chain: bool) -> SeveralResult:
        with interruptible("reading what is to be compared"):
            sources = {spec: self._sources(spec) for spec in specs}
            _check_names(sources)
            before = _predecessors(sources, chain=chain)
        verdicts = self._verdicts(specs)
        steps, notes = self._steps(verdicts, before)
        report = _build_report(sources[specs[0]][0].name, verdicts, steps, notes)
        splits = _split_kl(report, verdicts)
        searched = _pairs_to_search(report)
        ended: dict[_Pair, CompareResult] = {}
        stopped = False
        for comparison in (
            *(finished for _, finished in _finished_comparisons(verdicts)),
            *steps.values(),
        ):
            ended[comparison.named] = self._finish(comparison, report, searched, stopped=stopped)
            stopped = stopped or _was_stopped(ended[comparison.named])
        results = {
            spec: ended[comparison.named] for spec, comparison in _finished_comparisons(verdicts)
        }
        report = _build_report(
            report.base,
            {spec: _reported(verdicts[spec], results.get(spec)) for spec in specs},
            {pair: ended[step.named] for pair, step in steps.items()},
            notes,
            splits,
        )
        problems = [text for result in ended.values() for text in result.problems]
        problems += _write_files(report, self.options, self.cwd)
        return SeveralResult(report, tuple(results.values()), tuple(dict.fromkeys(problems)))

    def _sources(self, spec: str) -> tuple[Source, Source]:
        return resolve_request(self.base, spec, self.options_of(spec), cwd=self.cwd)[0]

    def _verdicts(self, specs: Sequence[str]) -> dict[str, FinishedComparison | NoVerdict]:
        """Every candidate's verdict, in its run folder; what goes wrong stops no other.

        Raises:
            EvalguardError: the first, if no candidate has a verdict.
            Interrupted: on Ctrl-C.
        """
        recurring, errors = RecurringBase(), list[EvalguardError]()
        verdicts: dict[str, FinishedComparison | NoVerdict] = {}
        for number, spec in enumerate(specs, 1):
            self._say(f"candidate {number} of {len(specs)}: {spec}")
            try:
                comparison = compare_sides(
                    self.base, spec, self.options_of(spec), cwd=self.cwd, recurring=recurring
                )
                verdicts[spec] = store_run(comparison)
            except Interrupted as error:
                error.hint = "; ".join(filter(None, [*_saved_verdicts(verdicts), error.hint]))
                raise
            except EvalguardError as error:
                _LOG.info("%s has no verdict", spec, exc_info=True)  # shown under --debug
                errors.append(error)
                verdicts[spec] = self._no_verdict(spec, error)
        if len(errors) == len(specs):
            raise errors[0]
        return verdicts

    def _no_verdict(self, spec: str, error: EvalguardError) -> NoVerdict:
        return NoVerdict(
            name=spec,
            reason=redacted_text(str(error)),
            hint=redacted_text(error.hint),
            exit_code=EXIT_GIT_BISECT_SKIP if self.options.git_bisect else EXIT_FAILED,
        )

    def _steps(
        self, found: Mapping[str, FinishedComparison | NoVerdict], before: Mapping[str, str]
    ) -> tuple[dict[_Pair, FinishedComparison], tuple[str, ...]]:
        """The comparisons of neighbours in a chain, and why there are none of some."""
        steps: dict[_Pair, FinishedComparison] = {}
        notes = []
        for spec, earlier in before.items():
            first, second = found[earlier], found[spec]
            name = f"the step {earlier} -> {spec} is not known"
            if isinstance(first, NoVerdict) or isinstance(second, NoVerdict):
                without = earlier if isinstance(first, NoVerdict) else spec
                notes.append(f"{name}: {without} has no verdict")
            elif first.report.sequential or second.report.sequential:
                notes.append(f"{name}: with --sequential the two were asked different documents")
            else:
                try:
                    steps[earlier, spec] = store_run(self._step((earlier, first), (spec, second)))
                except Interrupted:
                    raise
                except EvalguardError as error:
                    notes.append(f"{name}: {error_text(error)}")
        return steps, tuple(notes)

    def _step(
        self, first: tuple[str, FinishedComparison], second: tuple[str, FinishedComparison]
    ) -> FinishedComparison:
        (earlier, before), (spec, after) = first, second
        options = self.options_of_step(earlier, spec)
        sources, choices = resolve_request(earlier, spec, options, cwd=self.cwd)
        options = with_workers(options, choices)
        # A step is a view on two comparisons that the history and the trackers have.
        choices = replace(choices, history=None, track=())
        scored = with_named_figures(
            (
                replace(before.scored[1], divergences={}),
                replace(after.scored[1], divergences={}),
            ),
            choices.gate,
            choices.answers,
        )
        with interruptible("comparing the scores"):
            report = build_report(scored, choices, options)
        return FinishedComparison(
            named=(earlier, spec),
            sources=sources,
            scored=scored,
            choices=choices,
            options=options,
            report=report,
        )

    def _finish(
        self,
        one: FinishedComparison,
        report: SeveralReport,
        searched: frozenset[_Pair],
        *,
        stopped: bool,
    ) -> CompareResult:
        """What follows the verdict; of a chain, only the steps that drift most are searched.

        Args:
            stopped: Ctrl-C ended the search of another one, and is meant for this one too.
        """
        names = (one.report.base.name, one.report.candidate.name)
        in_chain = names[0] != report.base or len(report.path(names[1])) > 1 or names in searched
        options = one.options
        use, instead = one.choices.bisect.use, ""
        if stopped and use != "never":
            failing = one.report.gate.state == "regressed"
            use, instead = "never", "the search before it was interrupted" if failing else ""
        elif in_chain and use != "never":
            use, instead = _bisect_option(one, names in searched, report, searched)
        bisect = replace(one.choices.bisect, use=use, instead=instead)
        one = replace(one, choices=replace(one.choices, bisect=bisect))
        if in_chain and names in searched:
            options = replace(options, bisect=use)
        request = StoredRequest(
            base=one.named[0], candidate=one.named[1], cwd=self.cwd, options=options
        )
        return finish_resumed_run(one, request)

    def _say(self, text: str) -> None:
        with ProgressLine(quiet=self.options.quiet) as progress:
            progress.note(text)


def _was_stopped(result: CompareResult) -> bool:
    """Whether Ctrl-C ended the bisection of a comparison."""
    bisection = result.report.bisect
    ended = () if bisection is None else tuple(search.ended for search in bisection.searches)
    return "interrupted" in (*ended, result.report.bisect_ended)


def _bisect_option(
    one: FinishedComparison, chosen: bool, report: SeveralReport, searched: frozenset[_Pair]
) -> tuple[Any, str]:
    """Whether the settings of a pair in a chain are searched, and what is searched instead."""
    use, candidate = one.choices.bisect.use, one.candidate
    if not chosen:
        path = report.path(one.report.candidate.name)
        there = [f"{a} -> {b}" for a, b in path if (a, b) in searched]
        failing = one.report.gate.state == "regressed" and there
        return "never", _searched_step_note(there[0]) if failing else ""
    if use == "auto" and (candidate is None or not names_off_reference(candidate.variant)):
        base, name = one.named
        typed = as_bisection(one.report.command)
        derive = typed or shlex.join(["evalguard", "bisect", "--base", base, "--cand", name])
        return "never", f"{name} declares no settings of its own; to derive them: {derive}"
    return "always", ""


def _searched_step_note(step: str) -> str:
    return f"it drifts most in the step {step}, whose settings are searched"


def _pairs_to_search(report: SeveralReport) -> frozenset[_Pair]:
    """Of each candidate that regressed, the step in which its worst metric drifts most."""
    drifts = {
        (report.base, compared.candidate.name): {c.key: c.sigma for c in compared.comparisons}
        for compared in report.reports
    }
    drifts |= {step.names: {d.key: d.sigma for d in step.drifts} for step in report.steps}
    pairs = set()
    for compared in report.reports:
        worst, path = decisive_comparison(compared), report.path(compared.candidate.name)
        if compared.gate.state == "regressed" and worst is not None and len(path) > 1:
            sizes = {pair: drifts.get(pair, {}).get(worst.key) for pair in path}
            known = {pair: sigma for pair, sigma in sizes.items() if sigma is not None}
            if known:
                pairs.add(max(known, key=lambda pair: known[pair]))
    return frozenset(pairs)


def _build_report(
    base: str,
    found: Mapping[str, FinishedComparison | CompareReport | NoVerdict],
    steps: Mapping[_Pair, FinishedComparison | CompareResult],
    notes: tuple[str, ...],
    splits: tuple[KlSplit, ...] = (),
) -> SeveralReport:
    candidates = tuple(
        verdict.report if isinstance(verdict, FinishedComparison) else verdict
        for verdict in found.values()
    )
    of_chain = [
        c
        for candidate in candidates
        if isinstance(candidate, CompareReport)
        for c in candidate.comparisons
    ]
    return SeveralReport(
        base=base,
        candidates=candidates,
        steps=tuple(
            Step(report=step.report, drifts=tuple(step_drifts(step.report.comparisons, of_chain)))
            for step in steps.values()
        ),
        kl_splits=splits,
        notes=notes,
    )


def _split_kl(
    report: SeveralReport, found: Mapping[str, FinishedComparison | NoVerdict]
) -> tuple[KlSplit, ...]:
    finished = {
        comparison.report.candidate.name: comparison
        for _, comparison in _finished_comparisons(found)
    }
    splits = (split_kl(report.path(name), finished) for name in finished)
    return tuple(split for split in splits if split is not None)


def _reported(
    one: FinishedComparison | NoVerdict, result: CompareResult | None
) -> CompareReport | NoVerdict:
    if isinstance(one, NoVerdict):
        return one
    assert result is not None
    return result.report


def _finished_comparisons(
    found: Mapping[str, FinishedComparison | NoVerdict],
) -> Iterator[tuple[str, FinishedComparison]]:
    for spec, verdict in found.items():
        if isinstance(verdict, FinishedComparison):
            yield spec, verdict


def _saved_verdicts(found: Mapping[str, FinishedComparison | NoVerdict]) -> list[str]:
    """Where the verdicts are that an interrupt came after."""
    folders = [
        f"{spec} in {comparison.report.run_folder}"
        for spec, comparison in _finished_comparisons(found)
        if comparison.report.run_folder is not None
    ]
    return [f"finished: {', '.join(folders)}"] if folders else []


def _predecessors(sources: Mapping[str, tuple[Source, Source]], *, chain: bool) -> dict[str, str]:
    """Of each candidate that was made from another, that other one, both as they were given.

    Raises:
        UsageError: a chain of one.
    """
    specs = list(sources)
    if chain:
        return dict(zip(specs[1:], specs[:-1], strict=True))
    return {spec: ancestor for spec in specs if (ancestor := _ancestor(spec, sources)) is not None}


def _ancestor(spec: str, sources: Mapping[str, tuple[Source, Source]]) -> str | None:
    """The nearest candidate that one extends, itself or through models that are not compared."""
    base, candidate = sources[spec]
    guard = candidate.guard if isinstance(candidate, ModelSource) else None
    if guard is None:
        return None
    parent = guard.parents.get(spec)
    while parent is not None and parent != base.name:
        if parent in sources:
            return parent
        parent = guard.parents.get(parent)
    return None


def _check_options(specs: Sequence[str], options: CompareOptions) -> None:
    """Refuse what cannot be meant of several candidates.

    Raises:
        UsageError: naming it.
    """
    if not specs:
        raise UsageError("no candidate is given", hint="--cand MODEL, once for each")
    twice = [spec for index, spec in enumerate(specs) if spec in specs[:index]]
    if twice:
        raise UsageError(f"the candidate {twice[0]} is given twice", hint="leave one out")
    for name in _SINGLE_CANDIDATE_OPTIONS:
        if getattr(options, name):
            option = {"cand_set": "set"}.get(name, name).replace("_", "-")
            raise UsageError(
                f"--{option} is for one candidate, and there are {len(specs)}",
                hint="declare each in the guard file, or compare them one by one",
            )
    for path in options.output:
        choose_format(path, options.output_format)
    for path in options.output:
        check_output(path)


def _check_names(sources: Mapping[str, tuple[Source, Source]]) -> None:
    names: dict[str, str] = {}
    for spec, (_, candidate) in sources.items():
        earlier = names.setdefault(candidate.name, spec)
        if earlier != spec:
            raise UsageError(
                f"the candidates {earlier} and {spec} are both called {candidate.name} in reports",
                hint="give them names in a guard file: models: {NAME: {model_args: "
                "{pretrained: FOLDER}}}",
            )


def _write_files(report: SeveralReport, options: CompareOptions, cwd: Path) -> list[str]:
    """Write the files that were asked for; what cannot be written is a problem, and no verdict."""
    problems = []
    for path in dict.fromkeys(options.output):
        chosen = choose_format(path, options.output_format)
        try:
            write_output(cwd / path.expanduser(), SEVERAL_FORMATS[chosen](report))
        except (EvalguardError, OSError) as error:
            problems.append(f"{path} was not written: {error_text(error)}")
    return problems
