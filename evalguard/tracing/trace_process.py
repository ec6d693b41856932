"""A trace in a process of its own, for a base that brings code: no other model may be with it.

Started as ``python -m evalguard.tracing.trace_process``, not by people.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from evalguard.config.options import CompareOptions, describe_options, make_options
from evalguard.core.codec import codec_of
from evalguard.core.settings import Value
from evalguard.engine.interrupts import interruptible
from evalguard.engine.own_process import OwnProcess, serve_work
from evalguard.errors import EvaluationError, Interrupted, WorkerError
from evalguard.garbage import freeze_gc_at_exit, raise_gc_threshold
from evalguard.tracing.trace_report import TraceReport
from evalguard.tracing.traced_documents import DocumentChoice
from evalguard.worker.messages import Call

NOTHING_KEPT = "nothing of a trace is kept: the same command starts it anew"
_MODULE = "evalguard.tracing.trace_process"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceWork:
    """What is to be traced, as it was asked for; see ``evalguard.trace``."""

    base: str
    candidate: str
    options: CompareOptions
    choice: DocumentChoice
    name_map: Path | None
    detail: bool

    def as_record(self) -> dict[str, Value]:
        """The work as JSON values."""
        return {
            "base": self.base,
            "candidate": self.candidate,
            "options": describe_options(self.options),
            "documents": list(self.choice.ids),
            "limit": self.choice.limit,
            "texts": [str(path) for path in self.choice.texts],
            "inputs": [str(path) for path in self.choice.inputs],
            "name_map": None if self.name_map is None else str(self.name_map),
            "detail": self.detail,
        }

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> TraceWork:
        """Read back what ``as_record`` gave."""
        return cls(
            base=told["base"],
            candidate=told["candidate"],
            options=make_options(None, **told["options"]),
            choice=DocumentChoice(
                ids=tuple(told["documents"]),
                limit=told["limit"],
                texts=tuple(map(Path, told["texts"])),
                inputs=tuple(map(Path, told["inputs"])),
            ),
            name_map=None if told["name_map"] is None else Path(told["name_map"]),
            detail=told["detail"],
        )


def ask_for_trace(work: TraceWork, *, env: Mapping[str, str | None]) -> TraceReport:
    """Have a trace made in a process of its own, which shows its progress itself.

    Args:
        env: variables set over this process's own.

    Raises:
        EvalguardError: as tracing does.
        KeyboardInterrupt: on Ctrl-C; the process was stopped.
    """
    process = OwnProcess(_MODULE, env=env)
    try:
        answer = process.ask("trace", work.as_record())
    except WorkerError as error:
        raise EvaluationError(f"the trace of '{work.base}': {error}", hint=error.hint) from error
    process.close()
    return cast(TraceReport, codec_of(TraceReport).decode(answer))


class _TraceDesk:
    """Makes a trace."""

    def answer(self, call: Call) -> Value:
        """Return the report of a trace.

        Raises:
            KeyboardInterrupt: it is stopped.
        """
        if call.name == "close":
            return None
        work = TraceWork.read(cast("dict[str, Any]", call.argument))
        try:
            with interruptible("tracing", hint=NOTHING_KEPT):
                return codec_of(TraceReport).encode(_make_report(work))
        except Interrupted:
            raise KeyboardInterrupt from None

    def close(self) -> None:
        """Nothing is held."""


def _make_report(work: TraceWork) -> TraceReport:
    # Not before it is needed: whoever started this waits for a hello.
    from evalguard.page.progress import ProgressLine
    from evalguard.tracing.both_sides import make_trace_report, resolve_trace_request

    request = resolve_trace_request(
        work.base, work.candidate, work.options, work.choice, work.name_map
    )
    with ProgressLine(quiet=work.options.quiet) as progress:
        return make_trace_report(request, work.options, detail=work.detail, progress=progress)


if __name__ == "__main__":
    raise_gc_threshold()
    try:
        sys.exit(serve_work(_TraceDesk(), _MODULE))
    finally:
        freeze_gc_at_exit()
