"""The formats that a finished comparison can be written in, and which one a file asks for.

Markdown, JUnit and annotations are made for other people's eyes (an issue, a job's page): they hold
no words of documents.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalguard import tools
from evalguard.core.compare_report import CompareReport, RunDocuments
from evalguard.core.findings import without_quotes
from evalguard.core.option_words import Format
from evalguard.errors import UsageError, nearest

# What was asked and answered in a task; None where that is not there.
DocumentSource = Callable[[str], RunDocuments | None]
_WIDTH = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """One format.

    Attributes:
        render: makes the file's text. What it needs is imported when it is called:
            options are checked against this table before anything is written.
        suffixes: of files that are in this format.
        run_file: its name in a run folder; "" where none is written there unasked.
        render_traced: the same with a trace of the two models; None: such a file shows none.
    """

    render: Callable[[CompareReport, DocumentSource], str]
    suffixes: tuple[str, ...] = ()
    run_file: str = ""
    render_traced: Callable[[CompareReport, DocumentSource, Any], str] | None = None


def render_report(
    report: CompareReport,
    chosen: Format,
    documents: DocumentSource = lambda _task: None,
    trace: Any = None,
) -> str:
    """Return a report in a format, as the text of a file.

    Args:
        documents: what was asked and answered in a task.
        trace: a ``TraceReport`` of the two models; None: there is none.
    """
    rendering = RENDERINGS[chosen]
    if trace is not None and rendering.render_traced is not None:
        return rendering.render_traced(report, documents, trace)
    return rendering.render(report, documents)


def choose_format(path: Path, chosen: Format | None = None) -> Format:
    """Return the format of a file: the one that was chosen, else what its suffix says.

    Raises:
        UsageError: no format is known by its suffix, or there is none of that name; or the path
            is ``-``, which elsewhere means stdout and would become a file of that name.
    """
    refuse_dash(path)
    if chosen is not None:
        return check_format(chosen)
    suffix = path.suffix.lower()
    for name, rendering in RENDERINGS.items():
        if suffix in rendering.suffixes:
            return name
    known = [suffix for rendering in RENDERINGS.values() for suffix in rendering.suffixes]
    raise UsageError(
        f"{path}: the suffix {suffix!r} says no format" if suffix else f"{path} has no suffix",
        hint=f"name it {' or '.join(f'*{extension}' for extension in known)}, or choose one: "
        f"--format {'|'.join(RENDERINGS)}",
    )


def refuse_dash(path: Path) -> None:
    """Refuse ``-``, which elsewhere means stdout and would become a file of that name.

    Raises:
        UsageError: it is that.
    """
    if str(path) == "-":
        raise UsageError(
            "-o -: - is not a name of a file",
            hint="--format F without -o says in which format the report goes to stdout",
        )


def check_format(name: str) -> Format:
    """Return a format's name.

    Raises:
        UsageError: there is none of that name.
    """
    for known in RENDERINGS:
        if name == known:
            return known
    raise UsageError(
        f"there is no format '{name}'{nearest(name, RENDERINGS)}",
        hint=f"formats: {', '.join(RENDERINGS)}",
    )


def _text(report: CompareReport, _documents: DocumentSource) -> str:
    from evalguard.report.compare_terminal import render_terminal

    return render_terminal(report, width=_WIDTH, color=False, verbose=True) + "\n"


def _json(report: CompareReport, _documents: DocumentSource) -> str:
    from evalguard.report.compare_document import compare_document

    return json.dumps(compare_document(report), indent=2, allow_nan=False) + "\n"


def _markdown(report: CompareReport, _documents: DocumentSource) -> str:
    from evalguard.report.compare_markdown import render_markdown
    from evalguard.report.compare_view import build_report_view

    return render_markdown(build_report_view(without_quotes(report)))


def _junit(report: CompareReport, _documents: DocumentSource) -> str:
    from evalguard.report.compare_view import build_report_view

    text: str = tools.fetch("render_junit")(build_report_view(without_quotes(report)))
    return text


def _annotations(report: CompareReport, _documents: DocumentSource) -> str:
    from evalguard.report.compare_view import build_report_view

    text: str = tools.fetch("render_annotations")(build_report_view(without_quotes(report)))
    return text


def _html(report: CompareReport, documents: DocumentSource, trace: Any = None) -> str:
    from evalguard.report.compare_html import render_html as page
    from evalguard.report.compare_view import build_report_view

    tasks = dict.fromkeys(
        [
            *(entry.task for entry in report.comparisons),
            *(entry.task for entry in report.distributions),
        ]
    )
    loaded = [documents(task) for task in tasks]
    there = [task_documents for task_documents in loaded if task_documents is not None]
    if trace is None:
        return page(build_report_view(report), there)
    return page(build_report_view(report), there, tools.fetch("build_trace_view")(trace))


_OF_PUBLISH: dict[Format, Rendering] = {
    "junit": Rendering(render=_junit, suffixes=(".xml",), run_file="junit.xml"),
    "annotations": Rendering(render=_annotations),
}
RENDERINGS: dict[Format, Rendering] = {
    "text": Rendering(render=_text, suffixes=(".txt",)),
    "json": Rendering(render=_json, suffixes=(".json",)),
    "markdown": Rendering(render=_markdown, suffixes=(".md",)),
    **(_OF_PUBLISH if tools.is_there("publish") else {}),
    "html": Rendering(
        render=_html,
        suffixes=(".html", ".htm"),
        run_file="report.html",
        render_traced=_html,
    ),
}
