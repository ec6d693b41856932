"""The folder of a night and its files: index page, summaries, JSON.

Which nights are there, and finished.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

from evalguard.core.reports.history_report import TrendReport
from evalguard.core.reports.night_report import ALPHA, LOOKS, SCHEMA, NightReport, PairNight
from evalguard.core.reports.report_formats import Format
from evalguard.core.settings import Value
from evalguard.errors import EvalguardError, UsageError
from evalguard.regular_file import read_regular_text
from evalguard.report.formats import choose_format
from evalguard.report.night import night_document, night_mail, night_markdown, night_text
from evalguard.run.history.queries import HistorySelection, find_trends
from evalguard.run.meter import error_text
from evalguard.run.nightly.pair_worker import read_pair
from evalguard.run.options import CompareOptions
from evalguard.store.files import check_output, write_output
from evalguard.store.night_journal import NightJournal
from evalguard.store.run_folder import write_text


@dataclass(frozen=True, slots=True)
class NightlyResult:
    """A finished night.

    ``problems`` say what of it could not be written, ``tracked`` what became of its runs at
    experiment trackers.
    """

    report: NightReport
    problems: tuple[str, ...] = ()
    tracked: tuple[str, ...] = ()

    @property
    def pairs(self) -> tuple[PairNight, ...]:
        """What every pair came to."""
        return self.report.pairs

    @property
    def exit_code(self) -> int:
        """Over all pairs: 1, 3, 4 or 0; see ``gravest_exit_code``."""
        return self.report.exit_code

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON contract (schema ``evalguard.nightly/1``) as plain data."""
        return night_document(self.report)

    def to_json(self) -> str:
        """Return the JSON contract as text."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def render(self, *, width: int = 80, color: bool = False, verbose: bool = False) -> str:
        """Return the text that the command line prints; with ``verbose`` every pair and note."""
        text = night_text(self.report, width=width, color=color, verbose=verbose)
        return "\n\n".join([text, "\n".join(self.tracked)]) if self.tracked else text


# Where nights lie: one folder each, and which of them are finished.


JOURNAL_SCHEMA = "evalguard.night-journal/1"
NIGHT_RESULT = "night.json"
_FOLDER_TIME = "%Y%m%dT%H%M%SZ"


def new_night_folder(root: Path, now: datetime) -> Path:
    """A folder for a night that begins now; it is not made yet."""
    name = now.astimezone(timezone.utc).strftime(_FOLDER_TIME)
    place, number = root / name, 1
    while place.exists():
        number += 1
        place = root / f"{name}-{number}"
    return place


def find_unfinished_night(root: Path, head: Mapping[str, Value], *, since: datetime) -> Path | None:
    """The latest night of the same kind that began since then and was never finished.

    Args:
        head: what its journal has to begin with, but for the time.
    """
    for folder in reversed(list(_night_folders(root))):
        if (folder / NIGHT_RESULT).exists():
            continue
        found = NightJournal(folder).head
        same = {name: found.get(name) for name in head} == dict(head)
        if same and str(found.get("created", "")) >= since.isoformat(timespec="seconds"):
            return folder
    return None


def latest_night_name(root: Path) -> str:
    """Name of the night that is the latest by its name, finished or not; "" for none."""
    return max((folder.name for folder in _night_folders(root)), default="")


def read_last_night(
    root: Path, guard: str, *, before: Path
) -> tuple[str, tuple[PairNight, ...]] | None:
    """When the night before was, and what its pairs came to; None for the first one."""
    for folder in reversed(list(_night_folders(root))):
        if folder.name >= before.name:
            continue
        document = _read_result(folder / NIGHT_RESULT)
        if document is not None and document.get("guard") == guard:
            try:
                return str(document["created"]), tuple(map(read_pair, document["pairs"]))
            except (ValueError, TypeError, KeyError):
                continue
    return None


def list_unfinished_nights(root: Path, guard: str, *, before: Path) -> tuple[dict[str, Any], ...]:
    """Records of the nights directly before that their process did not live to finish.

    Args:
        guard: digest of the guard files: where they changed, what died may be mended.
    """
    found: list[dict[str, Any]] = []
    for folder in reversed(list(_night_folders(root))):
        if folder.name >= before.name:
            continue
        journal = NightJournal(folder)
        if journal.head.get("guard") != guard:
            continue
        if (folder / NIGHT_RESULT).exists():
            break
        found += journal.records
    return tuple(found)


def hours_ago(hours: float) -> datetime:
    """The time so many hours ago."""
    return datetime.now(timezone.utc) - timedelta(hours=hours)


def _night_folders(root: Path) -> Iterator[Path]:
    """Folders of nights, the oldest first: they are named by their time."""
    for folder in sorted(root.glob("[0-9]*T[0-9]*Z*")):
        if folder.is_dir() and not folder.is_symlink():
            yield folder


def _read_result(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(read_regular_text(path))
    except (OSError, ValueError, RecursionError):
        return None
    known = isinstance(document, dict) and document.get("schema") == SCHEMA
    return document if known else None


# Trends of a pair as a night shows them: the latest nights, at a rate that holds for a year.


MOST_NIGHTS = 120


def read_night_trends(history: Path, wanted: HistorySelection) -> TrendReport:
    """Trends with change points, for one of the looks of a year.

    Raises:
        UsageError: the history has no such pair, or cannot be read.
    """
    return find_trends(history, wanted, last=MOST_NIGHTS, alpha=ALPHA, looks=LOOKS)


# The index page of a night, with the trends that its history has.


def render_night_index(report: NightReport) -> str:
    """Return the page; a history that cannot be read costs only the trends."""
    from evalguard.report.html.night import render_night_page

    return render_night_page(report, tuple(_pair_trends(report)))


def _pair_trends(report: NightReport) -> Iterator[TrendReport]:
    for pair in report.pairs:
        if not (report.history and pair.created):
            continue
        wanted = HistorySelection(base=pair.base, candidate=pair.candidate)
        try:
            yield read_night_trends(Path(report.history), wanted)
        except EvalguardError:  # the night's changes say why
            continue


# The files of a night: those of its folder, those that were asked for; night.json comes last.
#
# A night without night.json is not finished, and is gone on with.


_LOG = logging.getLogger(__name__)


def _json(report: NightReport) -> str:
    return json.dumps(night_document(report), indent=2, allow_nan=False) + "\n"


def _text(report: NightReport) -> str:
    return night_text(report, width=80, color=False, verbose=True) + "\n"


_RENDERINGS: dict[Format, Callable[[NightReport], str]] = {
    "text": _text,
    "json": _json,
    "markdown": night_markdown,
    "html": render_night_index,
}
_FILES: dict[str, Callable[[NightReport], str]] = {
    "index.html": render_night_index,
    "summary.txt": night_mail,
    "summary.md": night_markdown,
    NIGHT_RESULT: _json,
}


def check_night_files(options: CompareOptions, *, cwd: Path) -> None:
    """Refuse files that cannot be written, before anything long runs.

    Raises:
        UsageError: naming the first.
    """
    for path, chosen in _requested_files(options, cwd):
        if chosen not in _RENDERINGS:
            raise UsageError(
                f"-o {path}: a night is not written as {chosen}",
                hint=f"formats of a night: {', '.join(_RENDERINGS)}",
            )
        check_output(path)


def write_night(report: NightReport, options: CompareOptions, cwd: Path) -> NightlyResult:
    """Write everything; what cannot be written is a problem of the result, not of the verdicts."""
    problems = []
    for path, chosen in _requested_files(options, cwd):
        problems += _try_write(path, partial(_write_requested, report, path, chosen))
    folder = Path(report.folder)
    for name in _FILES:
        problems += _try_write(folder / name, partial(_write_own, report, name))
    return NightlyResult(report, tuple(problems))


def _write_requested(report: NightReport, path: Path, chosen: Format) -> None:
    write_output(path, _RENDERINGS[chosen](report))


def _write_own(report: NightReport, name: str) -> None:
    write_text(Path(report.folder), name, _FILES[name](report))


def _requested_files(options: CompareOptions, cwd: Path) -> list[tuple[Path, Format]]:
    return [
        (cwd / path.expanduser(), choose_format(path, options.output_format))
        for path in dict.fromkeys(options.output)
    ]


def _try_write(path: Path, write: Callable[[], None]) -> list[str]:
    try:
        write()
    except Exception as error:  # noqa: BLE001 - the verdicts stand, whatever it is
        _LOG.info("%s was not written", path, exc_info=True)  # shown under --debug
        return [f"{path} was not written: {error_text(error)}"]
    return []
