"""What ``evalguard.nightly`` returns, and the files of a night; night.json comes last.

A night without night.json is not finished, and is gone on with.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from evalguard.core.reports.night_report import NightReport, PairNight
from evalguard.core.reports.report_formats import Format
from evalguard.errors import UsageError, error_text
from evalguard.report.contract.night_document import night_document
from evalguard.report.formats import choose_format
from evalguard.report.night_markdown import night_markdown
from evalguard.report.night_terminal import night_mail, night_text
from evalguard.run.nightly.night_folders import NIGHT_RESULT
from evalguard.run.nightly.night_trends import render_night_index
from evalguard.run.options import CompareOptions
from evalguard.store.output_file import check_output, write_output
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
