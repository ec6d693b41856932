"""The files of a night: those of its folder, those that were asked for; night.json comes last.

A night without night.json is not finished, and is gone on with.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from evalguard.errors import UsageError
from evalguard.night_report import NightReport
from evalguard.pipeline.nightly.night_folder import RESULT
from evalguard.pipeline.nightly.night_index import night_index
from evalguard.pipeline.nightly.result import NightlyResult
from evalguard.pipeline.options import CompareOptions
from evalguard.pipeline.told_error import told
from evalguard.report.formats import format_of
from evalguard.report.night.document import night_document
from evalguard.report.night.markdown import night_markdown
from evalguard.report.night.summary import night_mail, night_text
from evalguard.report_format import Format
from evalguard.store import check_output, write_output, write_text

_LOG = logging.getLogger(__name__)


def _json(report: NightReport) -> str:
    return json.dumps(night_document(report), indent=2, allow_nan=False) + "\n"


def _text(report: NightReport) -> str:
    return night_text(report, width=80, color=False, verbose=True) + "\n"


_RENDERINGS: dict[Format, Callable[[NightReport], str]] = {
    "text": _text,
    "json": _json,
    "markdown": night_markdown,
    "html": night_index,
}
_FILES: dict[str, Callable[[NightReport], str]] = {
    "index.html": night_index,
    "summary.txt": night_mail,
    "summary.md": night_markdown,
    RESULT: _json,
}


def check_night_files(options: CompareOptions, *, cwd: Path) -> None:
    """Refuse files that cannot be written, before anything long runs.

    Raises:
        UsageError: naming the first.
    """
    for path, chosen in _asked(options, cwd):
        if chosen not in _RENDERINGS:
            raise UsageError(
                f"-o {path}: a night is not written as {chosen}",
                hint=f"formats of a night: {', '.join(_RENDERINGS)}",
            )
        check_output(path)


def write_night(report: NightReport, options: CompareOptions, cwd: Path) -> NightlyResult:
    """Write everything; what cannot be written is a problem of the result, not of the verdicts."""
    problems = []
    for path, chosen in _asked(options, cwd):
        problems += _tried(path, partial(_write_asked, report, path, chosen))
    folder = Path(report.folder)
    for name in _FILES:
        problems += _tried(folder / name, partial(_write_own, report, name))
    return NightlyResult(report, tuple(problems))


def _write_asked(report: NightReport, path: Path, chosen: Format) -> None:
    write_output(path, _RENDERINGS[chosen](report))


def _write_own(report: NightReport, name: str) -> None:
    write_text(Path(report.folder), name, _FILES[name](report))


def _asked(options: CompareOptions, cwd: Path) -> list[tuple[Path, Format]]:
    return [
        (cwd / path.expanduser(), format_of(path, options.output_format))
        for path in dict.fromkeys(options.output)
    ]


def _tried(path: Path, write: Callable[[], None]) -> list[str]:
    try:
        write()
    except Exception as error:  # noqa: BLE001 - the verdicts stand, whatever it is
        _LOG.info("%s was not written", path, exc_info=True)  # shown under --debug
        return [f"{path} was not written: {told(error)}"]
    return []
