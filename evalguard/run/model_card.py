"""What is published of finished runs: a section of a model card, metadata, a badge; no model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalguard.core.checksum import checksum_fault
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.reports.findings import without_quotes
from evalguard.core.reports.runs_alike import find_run_differences
from evalguard.core.reports.several_report import SCHEMA as SEVERAL_SCHEMA
from evalguard.core.reports.several_report import NoVerdict, SeveralReport
from evalguard.errors import StoreError, UsageError
from evalguard.report.card.badge import draw_badge
from evalguard.report.card.card_section import card_section, draw_card_plot
from evalguard.report.card.model_index import render_model_index
from evalguard.report.contract.compare_document import COMPARE_SCHEMA
from evalguard.report.several_texts import candidate_name
from evalguard.report.words.plain_text import printable
from evalguard.run.stored_run import rebuild_report
from evalguard.store.output_file import check_output, write_output
from evalguard.store.result_file import read_document
from evalguard.store.safe_names import safe_name

_HINT = (
    "give run folders of `evalguard compare`, or the FILE.json that it wrote with -o for several "
    "candidates"
)
_MOST_SAID = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """Candidates of one base that were asked alike, ready to be published.

    ``notes``: which runs were left out, a line each.
    """

    report: SeveralReport
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """Return the section, without a picture: that is a file beside one."""
        return card_section(self.report)

    def write(self, paths: Sequence[Path]) -> tuple[Path, ...]:
        """Write files, each in the form that its name says, and return their paths.

        A .md file has a picture beside it; metadata and badges are one of each candidate.

        Raises:
            UsageError: before any is written: a name says no form, or two files have one name.
            StoreError: one cannot be written.
        """
        texts: dict[Path, str] = {}
        for path in dict.fromkeys(paths):
            for file, text in self._texts(path).items():
                if file in texts:
                    raise UsageError(
                        f"-o {file}: another file of this card has this name",
                        hint="give one of them another name",
                    )
                texts[file] = text
        for path in texts:
            check_output(path)
        for path, text in texts.items():
            write_output(path, text)
        return tuple(texts)

    def _texts(self, path: Path) -> dict[Path, str]:
        """The files that a name asks for."""
        suffix = path.suffix.lower()
        if suffix == ".md":
            plot = draw_card_plot(self.report)
            picture = path.with_name(f"{path.stem}-size.svg")
            if not plot:
                return {path: card_section(self.report)}
            return {path: card_section(self.report, plot=picture.name), picture: plot}
        one_of: Mapping[str, Callable[[CompareReport], str]] = {
            ".svg": draw_badge, ".yaml": render_model_index, ".yml": render_model_index,
        }  # fmt: skip
        if suffix not in one_of:
            raise UsageError(
                f"{path}: the suffix {suffix!r} says no form"
                if suffix
                else f"{path} has no suffix",
                hint="FILE.md is a section of a model card, FILE.yaml its model-index, FILE.svg a "
                "badge",
            )
        render = one_of[suffix]
        reports = self.report.reports
        if len(self.report.candidates) == 1:
            return {path: render(reports[0])}
        named = [(f"{path.stem}-{safe_name(candidate_name(one))}", one) for one in reports]
        return {path.with_name(f"{name}{path.suffix}"): render(one) for name, one in named}


def read_model_card(paths: Sequence[Path]) -> ModelCard:
    """Read finished runs, in the order given; of a candidate that was compared again the last.

    Args:
        paths: run folders of ``compare``, their result.json, or JSON of several candidates.

    Raises:
        UsageError: one is none of these; no candidate has a verdict; or two do not fit into one
            table: another base, other tasks or documents, two candidates of one name.
        StoreError: one is damaged.
    """
    read = [(path, one) for path in paths for one in _read_outcomes(path.expanduser())]
    found, notes = _without_earlier(read)
    reports = [(path, one) for path, one in found if isinstance(one, CompareReport)]
    if not reports:
        raise UsageError("no candidate of these runs has a verdict", hint=_HINT)
    (first, of_first), *others = reports
    for path, one in others:
        differing = list(find_run_differences(of_first, one))
        if differing:
            more = len(differing) - _MOST_SAID
            said = "; ".join(map(printable, differing[:_MOST_SAID]))
            raise UsageError(
                f"{path} and {first} do not belong into one table: {said}"
                + (f"; and {more} more" if more > 0 else ""),
                hint="compare all candidates with one base, and one command line",
            )
    _check_candidates(found)
    candidates = tuple(without_quotes(one) for _, one in found)  # a card is published
    report = SeveralReport(base=of_first.base.name, candidates=candidates)
    return ModelCard(report=report, notes=notes)


_Outcome = tuple[Path, CompareReport | NoVerdict]


def _without_earlier(read: Sequence[_Outcome]) -> tuple[list[_Outcome], tuple[str, ...]]:
    """Return the last run of each candidate, in the order given, and which were left out.

    Runs are of one candidate where base, name and place are the same, whatever is there by now.
    """
    latest: dict[tuple[str, ...], str] = {}
    for _, one in read:
        if isinstance(one, CompareReport):
            key = _candidate_key(one)
            latest[key] = max(one.created, latest.get(key, ""))
    earlier = [
        (path, one)
        for path, one in read
        if isinstance(one, CompareReport) and one.created < latest[_candidate_key(one)]
    ]
    notes = (
        f"{path} is left out: {candidate_name(one)} was compared again, at "
        f"{latest[_candidate_key(one)]}"
        for path, one in earlier
    )
    return [pair for pair in read if pair not in earlier], tuple(map(printable, notes))


def _candidate_key(one: CompareReport) -> tuple[str, ...]:
    candidate = one.candidate
    return one.base.name, candidate.name, candidate.folder, candidate.model


def _read_outcomes(path: Path) -> list[CompareReport | NoVerdict]:
    document = read_document(path, schemas=(COMPARE_SCHEMA, SEVERAL_SCHEMA), hint=_HINT)
    if document["schema"] == COMPARE_SCHEMA:
        return [rebuild_report(path, document)]
    candidates = document.get("candidates")
    if not isinstance(candidates, list) or not candidates:
        raise StoreError(f"{path} is damaged: candidates is no list of them", hint=_HINT)
    return [_read_candidate(path, number, one) for number, one in enumerate(candidates)]


def _read_candidate(path: Path, number: int, told: Any) -> CompareReport | NoVerdict:
    where = f"{path}: candidates[{number}]"
    if not isinstance(told, Mapping):
        raise StoreError(f"{where} is damaged: it is no object", hint=_HINT)
    if "error" in told:
        texts = [told.get(key, "") for key in ("candidate", "error", "hint")]
        if not all(isinstance(text, str) for text in texts):
            raise StoreError(f"{where} is damaged: its error is no text", hint=_HINT)
        name, reason, hint = texts
        return NoVerdict(name=name, reason=reason, hint=hint)
    fault = checksum_fault(told)
    if fault:
        raise StoreError(
            f"{where} is not as evalguard wrote it: {fault}",
            hint="take the file from where it was made, or compare again; do not edit it",
        )
    return rebuild_report(path, told)


def _check_candidates(found: Sequence[tuple[Path, CompareReport | NoVerdict]]) -> None:
    """Refuse two rows that nobody could tell apart."""
    names: dict[str, Path] = {}
    for path, one in found:
        name = candidate_name(one)
        if name in names:
            raise UsageError(
                f"{names[name]} and {path} both are of a candidate that is called {name}",
                hint="leave one out, or name them in a guard file and compare again",
            )
        names[name] = path
